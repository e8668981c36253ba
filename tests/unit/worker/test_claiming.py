"""When the worker claims again: a lane is free, unless the last claim found less than it asked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import crashpoints
from holdfast.jobs.claim import Found
from holdfast.jobs.model import JobId, WorkerId
from holdfast.worker import claiming as claiming_module
from holdfast.worker.claiming import Claimer
from holdfast.worker.prefetch import Wanted
from holdfast.worker.transports.interface import Takes


class Room:
    """A prefetch with room for so many, and lanes that run what they get."""

    def __init__(self, room: int, *, is_limited: bool = False, any_kind: bool = True) -> None:
        self.is_limited, self.reserved_ahead = is_limited, 0
        self._room, self._any_kind = room, any_kind

    def wanted(self) -> Wanted:
        return Wanted(self._room - self.reserved_ahead, Takes({"k": 1}, ("default",)), self._any_kind)

    def may_take(self, wanted: int) -> int:
        return wanted

    def reserve(self, count: int, *, ahead: bool = False) -> None:
        self.reserved_ahead += count

    def release(self, count: int, *, ahead: bool = False) -> None:
        self.reserved_ahead -= count


def claiming_for(transport: Any, prefetch: Any) -> Claimer:
    lanes: Any = SimpleNamespace(hand_out=lambda claims: None)
    return Claimer(transport, WorkerId("w"), lanes, prefetch, largest_batch=500)


class Empty:
    """A queue with nothing in it, or with nothing but what other claims have locked."""

    largest_batch = 500
    asked = 0

    def __init__(self, contended: int = 0) -> None:
        self.contended = contended  # claims that find it so

    async def claim(self, *_: Any) -> Found:
        self.asked += 1
        return Found([], [], contended=self.asked <= self.contended)


@pytest.mark.parametrize(
    ("room", "any_kind", "asks_again"),
    [
        (-480, True, True),  # more was claimed than seems wise since jobs take longer: nothing is known about the rest
        (0, True, True),
        (20, True, False),  # a claim found nothing: what comes, comes with a hint
        (20, False, True),  # it asked for short kinds only: there may be others
    ],
)
async def test_free_lane_claims_again_unless_the_last_claim_was_empty(room: int, any_kind: bool, asks_again: bool) -> None:
    claiming = claiming_for(Empty(), Room(room, any_kind=any_kind))
    running = asyncio.create_task(claiming.run())
    await _settled()

    claiming.on_idle_lane()

    assert claiming._wake.is_set() == asks_again
    assert claiming._saw_empty.is_set() == (room == 20 and any_kind)
    running.cancel()


@pytest.mark.parametrize(
    ("contended", "asked"),
    [
        (0, 2),  # another worker has claimed it: one claim a hint and worker is enough
        (3, 4),  # a claim under way may lock more than it takes, and sends no hint when it is done
    ],
)
async def test_claim_that_found_only_locked_jobs_is_repeated(
    contended: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming_module, "AGAIN", 0)
    monkeypatch.setattr(claiming_module, "LONGEST_PAUSE", 0)
    transport = Empty(contended)
    claiming = claiming_for(transport, Room(20))
    running = asyncio.create_task(claiming.run())
    if not contended:
        await _settled()
        claiming.wake()

    for _ in range(5):
        await _settled()

    assert transport.asked == asked
    running.cancel()


async def test_claims_of_locked_jobs_are_repeated_with_backoff() -> None:
    claiming = claiming_for(Empty(), Room(20))
    pauses = []

    for contended in (True, True, True, True, True, True, True, False, True):
        claiming._claim_again_later(contended)
        pauses.append(claiming._pause)

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.0, 0.05]


class Plenty:
    """A queue that never ends; each answer waits until the test lets it go."""

    largest_batch = 500

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Semaphore(0)

    async def claim(self, _worker: Any, _takes: Any, limit: int) -> Found:
        self.asked += 1
        await self.answers.acquire()
        return Found([SimpleNamespace()] * limit, [])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("room", "is_limited", "under_way"),
    [
        (100_000, False, 2),  # short jobs: the database has the next batch to look for while we read and run the last
        (600, False, 1),  # no more than the lanes eat up in a moment
        (100_000, True, 1),  # so many and no more: they are counted one batch after the other
    ],
)
async def test_full_batches_allow_a_second_concurrent_claim(room: int, is_limited: bool, under_way: int) -> None:
    prefetch = Room(room, is_limited=is_limited)
    transport: Any = Plenty()
    claiming = claiming_for(transport, prefetch)
    running = asyncio.create_task(claiming.run())
    await _settled()
    assert transport.asked == 1, "nobody knows yet that there is plenty"

    transport.answers.release()
    await _settled()

    assert transport.asked == 1 + under_way
    assert prefetch.reserved_ahead == 500 * (under_way - 1), "lanes are kept for what is on its way"
    assert not claiming.is_idle
    running.cancel()
    await claiming.close()
    assert prefetch.reserved_ahead == 0


async def _settled() -> None:
    """Nothing here takes time, so a few turns are enough for everybody to wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class Tied(Empty):
    """A queue with one job that needs a lock; the claim of it gets these."""

    def __init__(self, got: list[Any]) -> None:
        super().__init__()
        self.got = got

    async def claim(self, *_: Any) -> Found:
        self.asked += 1
        return Found([], [JobId(1)] if self.asked == 1 else [])

    async def claim_tied(self, *_: Any) -> list[Any]:
        return self.got


@pytest.mark.parametrize("got", [[], [object()]], ids=["nothing", "the job"])
async def test_crash_point_after_a_claim_is_reached_only_if_a_job_was_claimed(got: list[Any]) -> None:
    """Another claim may have the row locked. A worker that died then would leave nothing to rescue."""
    reached: list[str] = []
    crashpoints.arm("claim.after_commit", lambda: reached.append("claim.after_commit"))
    try:
        claiming = claiming_for(Tied(got), Room(1))
        running = asyncio.create_task(claiming.run())
        await _settled()
        claiming.stop()
        await running
    finally:
        crashpoints.disarm("claim.after_commit")

    assert len(reached) == len(got)
