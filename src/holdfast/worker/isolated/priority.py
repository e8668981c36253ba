"""Lower the CPU priority of a child process. Called by: `child.py`, before there are threads.

`nice` alone has no effect where the Linux scheduler groups processes by session (autogroup, on by default on desktops and
servers, but not in a container with a CPU share of its own): it compares sessions first, and a child has one of its own.
Measured with two busy processes on one core: the one with `nice` 10 got half of the core, and a tenth after the same value was
given to its group.
"""

from __future__ import annotations

import os
import time
from typing import Final

AUTOGROUP: Final = "/proc/self/autogroup"
TRIES: Final = 5
SECONDS_BETWEEN: Final = 0.1  # the kernel accepts one change in this time from all unprivileged processes


def lower_priority(by: int) -> None:
    """Yield the CPU to others, in this session and in others. 0 changes nothing."""
    if by:
        set_group_priority(os.nice(by))


def set_group_priority(niceness: int) -> None:
    """Give the group of this session the same niceness. Does nothing where there is no such group."""
    for _ in range(TRIES):
        try:
            group = os.open(AUTOGROUP, os.O_WRONLY)
            try:
                os.write(group, str(niceness).encode())
            finally:
                os.close(group)
        except BlockingIOError:
            time.sleep(SECONDS_BETWEEN)
        except OSError:
            return
        else:
            return
