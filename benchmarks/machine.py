"""What the figures were measured on, and how quiet it was there at the time."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.postgres import Server


async def describe(server: Server) -> dict[str, Any]:
    """Processor, memory, versions, and the settings of the server."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgres": await server.version(),
        "postgres_settings": await server.settings(),
        "conditions": {},
    }


async def conditions(server: Server) -> dict[str, float]:
    """What a durable commit costs right now, and how many processes want a core: another job on the machine shows here."""
    return {"commit_ms": round(await server.commit_ms(), 2), "load": round(os.getloadavg()[0], 1)}


def cpu_name() -> str:
    """The processor as the kernel names it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
