"""When the worker asks for more: a free lane is a reason, unless the last look found less than was asked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.jobs.claim import Found
from holdfast.jobs.model import WorkerId
from holdfast.worker.claiming import Claiming


class Empty:
    """A queue with nothing in it."""

    largest_batch = 500

    async def claim(self, *_: Any) -> Found:
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
    lanes: Any = SimpleNamespace(room=lambda: room, may_take=lambda wanted: wanted, hand_out=lambda claims: None, expected=0)
    transport: Any = Empty()
    claiming = Claiming(transport, WorkerId("w"), lanes, lambda: transport, 500, asyncio.Event())
    running = asyncio.create_task(claiming.run())
    for _ in range(10):  # it comes to wait without anything that takes time
        await asyncio.sleep(0)

    claiming.on_free_lane()

    assert claiming.wake.is_set() == asks_again
    running.cancel()
