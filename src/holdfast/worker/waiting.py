"""Claims that wait for a lane, and lanes that wait for a claim. Used by: the lanes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from holdfast.jobs.model import Claim


class Waiting:
    """A queue of claims in the order in which lanes take them."""

    def __init__(self) -> None:
        self.ready: deque[Claim] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._added = 0  # claims in all
        self._arrivals: deque[tuple[float, int]] = deque()  # when a batch came, and how many had been added with it

    def add(self, claims: Sequence[Claim]) -> None:
        self.ready.extend(claims)
        self._added += len(claims)
        if claims:
            self._arrivals.append((time.monotonic(), self._added))
            while len(self._arrivals) > 1 and self._arrivals[0][1] <= self._added - len(self.ready):
                self._arrivals.popleft()  # every claim of that batch has gone to a lane
        wanted = len(claims)
        while wanted and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                wanted -= 1

    def take_back(self, longer_than: float | None = None) -> list[Claim]:
        """Remove and return what waits, or only what has waited for more than so many seconds."""
        if longer_than is None:
            count = len(self.ready)
        else:
            before = time.monotonic() - longer_than
            gone = self._added - len(self.ready)
            count = max([0, *(added - gone for arrived, added in self._arrivals if arrived < before)])
        return [self.ready.popleft() for _ in range(count)]

    async def wait(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        await waiting
