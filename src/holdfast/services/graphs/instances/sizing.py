"""How much memory an instance gets: from the size of its snapshot at the start, and when it grows. Pure."""

from __future__ import annotations

import math
from typing import Final

MB: Final = 1024 * 1024
MB_PER_GB: Final = 1024
FACTOR, BASE_MB, HEADROOM = 1.2, 512, 1.5  # 1.2 times the size of the files and 0.5 GiB, with half as much again


def memory_for(size_bytes: int, *, least_mb: int, most_mb: int) -> int:
    """The memory to load a snapshot of this size, in whole GiB unless the least is less than that."""
    needed = (FACTOR * size_bytes / MB + BASE_MB) * HEADROOM
    if needed <= least_mb:
        return min(least_mb, most_mb)
    return min(math.ceil(needed / MB_PER_GB) * MB_PER_GB, most_mb)


def grown(memory_mb: int, *, most_mb: int) -> int | None:
    """Twice as much, at most the maximum; None: it has that already."""
    return None if memory_mb >= most_mb else min(2 * memory_mb, most_mb)
