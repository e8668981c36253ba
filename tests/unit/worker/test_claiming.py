"""When the worker asks for more: a free lane is a reason, unless the last look found less than was asked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.jobs.claim import Found
from holdfast.jobs.model import WorkerId
from holdfast.worker import claiming as claiming_module
from holdfast.worker.claiming import Claiming


def lanes_with(room: int, *, is_limited: bool = False) -> Any:
    """Lanes that eat up whatever they get."""
    lanes = SimpleNamespace(expected=0, is_limited=is_limited)
    lanes.room, lanes.may_take = lambda: room - lanes.expected, lambda wanted: wanted
    lanes.hand_out = lambda claims: None
    return lanes


class Empty:
    """A queue with nothing in it."""

    largest_batch = 500
    asked = 0

    async def claim(self, *_: Any) -> Found:
        self.asked += 1
        return Found([], [])


@pytest.mark.parametrize(
    ("room", "asks_again"),
    [
        (-480, True),  # more was taken than seems wise since jobs take longer: nobody has looked whether there is more
        (0, True),
        (20, False),  # it was looked for and nothing was there: what comes, comes with a hint
    ],
)
async def test_a_free_lane_asks_for_more_unless_there_was_nothing(room: int, asks_again: bool) -> None:
    lanes: Any = SimpleNamespace(
        room=lambda: room, may_take=lambda wanted: wanted, hand_out=lambda claims: None, expected=0, is_limited=False
    )
    transport: Any = Empty()
    claiming = Claiming(transport, WorkerId("w"), lanes, lambda: transport, 500, asyncio.Event())
    running = asyncio.create_task(claiming.run())
    await _settled()

    claiming.on_free_lane()

    assert claiming.wake.is_set() == asks_again
    running.cancel()


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        (True, 3),  # whoever claims at this moment may hold more than it takes
        (False, 2),
    ],
)
async def test_a_look_that_was_told_of_something_and_found_nothing_looks_once_more(
    told: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming_module, "AGAIN", 0)
    transport: Any = Empty()
    claiming = Claiming(transport, WorkerId("w"), lanes_with(20), lambda: transport, 500, asyncio.Event())
    running = asyncio.create_task(claiming.run())
    await _settled()

    (claiming.tell if told else claiming.wake.set)()
    await _settled()

    assert transport.asked == asked
    running.cancel()


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
async def test_where_batches_come_back_full_a_second_one_is_asked_for_beside(
    room: int, is_limited: bool, under_way: int
) -> None:
    lanes: Any = SimpleNamespace(
        may_take=lambda wanted: wanted, hand_out=lambda claims: None, expected=0, is_limited=is_limited
    )
    lanes.room = lambda: room - lanes.expected
    transport: Any = Plenty()
    claiming = Claiming(transport, WorkerId("w"), lanes, lambda: transport, 500, asyncio.Event())
    running = asyncio.create_task(claiming.run())
    await _settled()
    assert transport.asked == 1, "nobody knows yet that there is plenty"

    transport.answers.release()
    await _settled()

    assert transport.asked == 1 + under_way
    assert lanes.expected == 500 * (under_way - 1), "lanes are kept for what is on its way"
    assert not claiming.is_quiet
    running.cancel()
    await claiming.close()
    assert lanes.expected == 0


async def _settled() -> None:
    """Nothing here takes time, so a few turns are enough for everybody to wait."""
    for _ in range(10):
        await asyncio.sleep(0)
