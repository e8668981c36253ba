"""The queue between claiming and the lanes: claims in the order in which lanes take them. Used by: `lanes.py`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from holdfast.jobs.model import Claim


def _ignore() -> None:
    """The default for `on_idle`: does nothing."""


class ClaimQueue:
    """Claims that wait for a lane, and lanes that wait for a claim. `on_idle` is called before a lane waits."""

    def __init__(self, on_idle: Callable[[], None] = _ignore) -> None:
        self._on_idle = on_idle
        self._ready: deque[Claim] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._added = 0  # claims in all
        self._arrivals: deque[tuple[float, int]] = deque()  # when a batch came, and how many had been added with it
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    def __iter__(self) -> Iterator[Claim]:
        """The waiting claims; over a copy, because the heartbeat's thread asks as well."""
        return iter(list(self._ready))

    def add(self, claims: Sequence[Claim]) -> None:
        """Add claims and wake as many idle lanes."""
        self._ready.extend(claims)
        self._added += len(claims)
        if claims:
            self._arrivals.append((time.monotonic(), self._added))
            while len(self._arrivals) > 1 and self._arrivals[0][1] <= self._added - len(self._ready):
                self._arrivals.popleft()  # every claim of that batch has gone to a lane
        to_wake = len(claims)
        while to_wake and self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                to_wake -= 1

    async def take(self) -> Claim | None:
        """The next claim, as soon as there is one; None once the queue is closed."""
        while True:
            if self._closed:
                return None
            if self._ready:
                return self._ready.popleft()
            self._on_idle()
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    def take_now(self) -> Claim | None:
        """The next claim if there is one."""
        return self._ready.popleft() if self._ready else None

    def take_back(self, longer_than: float | None = None) -> list[Claim]:
        """Remove and return what waits, or only what has waited for more than so many seconds."""
        if longer_than is None:
            count = len(self._ready)
        else:
            before = time.monotonic() - longer_than
            gone = self._added - len(self._ready)
            count = max([0, *(added - gone for arrived, added in self._arrivals if arrived < before)])
        return [self._ready.popleft() for _ in range(count)]

    def close(self) -> None:
        """Lanes take no more claims; the worker releases what a claim under way still returns."""
        self._closed = True
