"""Try again until it works, with growing pauses. Called by: everything in the worker that must reach the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


async def retry_forever(first: float = 0.1, longest: float = 5.0) -> AsyncIterator[int]:
    """Count tries without end, with a growing pause before each but the first."""
    number, pause = 0, first
    while True:
        yield number
        await asyncio.sleep(pause)
        number, pause = number + 1, min(pause * 2, longest)
