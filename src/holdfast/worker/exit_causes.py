"""Why a process ended: the cause and the error with which its jobs are released. Pure, except for the counter of OOM kills.

Called by: the keeper for its executors, `isolated/parent.py` for child processes, and the processes that run handlers.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
RECENTLY = 10.0  # seconds: the longest time from an OOM kill to the end of the process
SIGKILL_EXIT_CODE = 128 + signal.SIGKILL  # 137: how a shell or a container runtime reports SIGKILL


@dataclass(frozen=True, slots=True)
class ExitCause:
    """How a process ended: a short cause, and an error message."""

    cause: str
    error: str


def run_or_exit(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` for a process that runs handlers. A handler that calls `sys.exit` in a task ends the process at once, which
    counts as a crash. After an orderly shutdown its job would be released without counting it, and crash again and again."""
    with asyncio.Runner() as runner:
        try:
            runner.run(work)
        except SystemExit as left:
            os._exit(left.code if isinstance(left.code, int) else 1)


def exit_cause(returncode: int, *, oom_kills_rose: bool) -> ExitCause:
    """The cause for a return code; negative is a signal, as in `subprocess`.

    The kernel's out-of-memory killer sends SIGKILL, too; the counter of the cgroup makes the difference.
    """
    if returncode == -signal.SIGKILL and oom_kills_rose:
        return ExitCause("oom", "its process was killed because the memory ran out (SIGKILL by the kernel)")
    if returncode == SIGKILL_EXIT_CODE:
        return ExitCause("oom", "its process ended with 137, as after the memory ran out")
    if returncode < 0:
        name = _signal_name(-returncode)
        return ExitCause(name, f"its process was killed by {name}")
    return ExitCause(f"exit {returncode}", f"its process ended with exit code {returncode}")


def restart_delay(short_lives: int) -> float:
    """Seconds until the next executor starts, after so many in a row that ended soon. The first restart is immediate."""
    return 0.0 if short_lives <= 1 else min(0.1 * 2.0 ** min(short_lives - 1, 10), 10.0)


class OomCounter:
    """The number of OOM kills in this process's cgroup. Always 0 without a cgroup."""

    def __init__(self, own: Path = OWN_CGROUPS, root: Path = CGROUPS) -> None:
        self._file = _counter_file(own, root)
        self._seen = self._read()
        self._rose_at: float | None = None

    def poll(self) -> None:
        """Note when the counter rose, so that a much later exit is not attributed to it. The kernel counts before it kills,
        and a process with much memory ends slowly: a poll may come in between."""
        before, self._seen = self._seen, self._read()
        if self._seen > before:
            self._rose_at = time.monotonic()

    def rose(self) -> bool:
        """Whether it rose recently. Each rise is reported once."""
        self.poll()
        rose_at, self._rose_at = self._rose_at, None
        return rose_at is not None and time.monotonic() - rose_at < RECENTLY

    def _read(self) -> int:
        if self._file is None:
            return 0
        try:
            found = re.search(r"^oom_kill (\d+)$", self._file.read_text(), re.MULTILINE)
        except OSError:
            return 0
        return int(found[1]) if found else 0


def _counter_file(own: Path, root: Path) -> Path | None:
    """The file with the counter. cgroups v2 has one hierarchy (`0::/path`), v1 one for memory. In a container the path may be
    that of the host, while the mount shows the container's own cgroup."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = path.lstrip("/")
        if "memory" in controllers.split(","):
            candidates = [root / "memory" / inner / "memory.oom_control", root / "memory" / "memory.oom_control"]
        elif controllers == "":
            candidates = [root / inner / "memory.events", root / "memory.events"]
        else:
            continue
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
