"""A limit on calls per second: a token bucket that callers wait for in turn. Used by `cluster.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Rate:
    """`burst` calls at once, then `per_second`. Each caller reserves the next free moment, so nobody waits for ever."""

    def __init__(self, per_second: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._window, self._clock = 1 / per_second, (burst - 1) / per_second, clock
        self._next = clock() - self._window

    async def turn(self) -> None:
        """Wait until this call may be sent."""
        wait = self.reserve()
        if wait > 0:
            await asyncio.sleep(wait)

    def reserve(self) -> float:
        """Take the next free moment; return the seconds until then."""
        now = self._clock()
        mine = max(self._next, now - self._window)
        self._next = mine + self._interval
        return max(0.0, mine - now)

    def pause(self, seconds: float) -> None:
        """Send nothing for this long, because the server is overloaded."""
        self._next = max(self._next, self._clock() + seconds)
