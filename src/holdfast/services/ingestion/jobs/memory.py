"""How much memory this process has needed, for the report of a job."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final

STATUS: Final = Path("/proc/self/status")
PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_memory() -> int:
    """The most memory that this process has had, in bytes.

    Linux has it in /proc. `ru_maxrss` is for other systems: on Linux a process inherits the peak of the one that started it.
    """
    if STATUS.exists() and (found := PEAK.search(STATUS.read_text())):
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
