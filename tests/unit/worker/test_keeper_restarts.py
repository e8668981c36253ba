"""When a keeper starts the next executor after one has died."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.worker.job_counts import JobCounts
from holdfast.worker.keeper import keeper as product
from holdfast.worker.keeper.keeper import Keeper
from holdfast.worker.keeper.messages import ExecutorConfig, Mode


class Child:
    """An executor that has exited."""

    id, pid, ready_at, database_error, start_error, was_killed_by_us = "an id", 1, None, None, None, False

    def __init__(self, returncode: int, counts: JobCounts | None) -> None:
        self.counts = counts
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited.set_result(returncode)


async def steps_of(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One executor dies, and the next one does what is left. The rescue takes many turns of the event loop."""
    keeper = Keeper(ExecutorConfig("postgresql://nowhere", ("jobs",), mode=mode))
    steps: list[str] = []
    children = iter([Child(-9, None), Child(0, JobCounts())])

    def start() -> Any:
        steps.append("start")
        child = next(children)
        keeper._children.append(child)  # type: ignore[arg-type]
        return child

    async def rescue(*_: object) -> None:
        for _turn in range(100):
            await asyncio.sleep(0)
        steps.append("rescued")

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(keeper, "_rescue_jobs", rescue)
    monkeypatch.setattr(product, "restart_delay", lambda _: 0.0)
    await keeper._supervise(1)
    await asyncio.gather(*keeper._tasks)
    return steps


async def test_draining_keeper_rescues_the_jobs_of_a_dead_executor_before_it_starts_the_next(monkeypatch: pytest.MonkeyPatch):
    """An executor that drains exits when it finds nothing: the job of the dead one would be left."""
    assert await steps_of("drain", monkeypatch) == ["start", "rescued", "start"]


async def test_serving_keeper_does_not_wait_for_the_rescue(monkeypatch: pytest.MonkeyPatch):
    """The rescue may wait for the database; the next executor takes other jobs meanwhile."""
    assert await steps_of("serve", monkeypatch) == ["start", "start", "rescued"]
