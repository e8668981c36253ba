"""Parents that end concurrently, and a concurrent abort."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from factories import column, end, hold, moves_of, rows, state_of, take, waits
from holdfast.jobs.cancel import abort
from holdfast.jobs.finish import finish
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import COMPLETED, Done, Fail, decide
from holdfast.jobs.pipelines import Pipeline, read_pipeline

PODS = 8


async def _fan_in(conn: Any, parts: int) -> tuple[Pipeline, list[int]]:
    pipeline = Pipeline("fan-in")
    steps = [pipeline.add(NewJob("k")) for _ in range(parts)]
    pipeline.add(NewJob("join"), after=steps)
    return pipeline, [made.id for made in await pipeline.enqueue(conn)]


@pytest.mark.more
async def test_join_is_woken_once_by_its_last_parent(connect: Any) -> None:
    pods = [await connect() for _ in range(PODS)]
    for _ in range(5):
        _, (*parents, join) = await _fan_in(pods[0], 16)
        claims = [await take(pods[0], parent) for parent in parents]

        async def work(pod: Any, mine: list[Any]) -> None:
            for claim in mine:
                await finish(pod, claim, COMPLETED)

        await asyncio.gather(*(work(pod, claims[number::PODS]) for number, pod in enumerate(pods)))

        assert (await column(pods[0], join, "parents_left"), await state_of(pods[0], join)) == (0, "pending")
        assert await moves_of(pods[0], join) == ["wake"]


async def test_failure_wins_over_concurrent_completions(connect: Any) -> None:
    pods = [await connect() for _ in range(PODS)]
    for _ in range(5):
        pipeline, (*parents, join) = await _fan_in(pods[0], PODS)
        claims = [await take(pods[0], parent) for parent in parents]

        await asyncio.gather(
            *(
                finish(pod, claim, decide(claim, Fail("no") if number == 3 else None))
                for number, (pod, claim) in enumerate(zip(pods, claims, strict=True))
            )
        )

        assert await state_of(pods[0], join) == "cancelled"
        assert (await read_pipeline(pods[0], pipeline.id)).status == "partial"


async def test_abort_and_finish_do_not_deadlock(connect: Any) -> None:
    """Stepped: the end has its own row and is about to go to its child, when the abort comes for both."""
    conn, ending, aborting = await connect(), await connect(), await connect()
    pipeline, (parent, join) = await _fan_in(conn, 1)
    claim = await take(conn, parent)

    async with ending.transaction():
        await ending.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [parent])
        stopping = asyncio.create_task(abort(aborting, pipeline.id, actor="ada"))
        await waits(conn, aborting)
        await finish(ending, claim, COMPLETED)
    await stopping

    assert (await state_of(conn, parent), await state_of(conn, join)) == ("completed", "cancelled")


async def test_child_created_during_the_abort_is_aborted(connect: Any) -> None:
    conn, ending, aborting = await connect(), await connect(), await connect()
    pipeline = Pipeline("chain")
    pipeline.add(NewJob("k"))
    (parent,) = await pipeline.enqueue(conn)
    claim = await take(conn, parent.id)

    async with ending.transaction():
        await finish(ending, claim, decide(claim, Done(then=[NewJob("k"), NewJob("k")], join=NewJob("k"))))
        stopping = asyncio.create_task(abort(aborting, pipeline.id, actor="ada"))
        await waits(conn, aborting)
    await stopping

    assert (await read_pipeline(conn, pipeline.id)).counts == {"completed": 1, "cancelled": 3}


async def test_concurrent_aborts_finishes_and_failures_leave_no_live_job(connect: Any) -> None:
    pods = [await connect() for _ in range(PODS)]
    for _ in range(5):
        pipeline, (*parents, _) = await _fan_in(pods[0], PODS - 2)
        claims = [await take(pods[0], parent) for parent in parents]

        await asyncio.gather(
            abort(pods[-1], pipeline.id, actor="ada"),
            abort(pods[-2], pipeline.id, actor="bob"),
            *(
                finish(pod, claim, decide(claim, Fail("no") if number % 3 else None))
                for number, (pod, claim) in enumerate(zip(pods, claims, strict=False))
            ),
        )

        live = (
            "SELECT id, state FROM holdfast.jobs WHERE pipeline_id = %s AND state NOT IN ('completed', 'failed', 'cancelled')"
        )
        assert await rows(pods[0], live, pipeline.id) == []


async def test_chain_over_many_workers_never_forks(connect: Any) -> None:
    pods = [await connect() for _ in range(3)]
    first = await hold(pods[0])
    for _ in range(10):
        outcomes = await asyncio.gather(
            *(finish(pod, first, decide(first, Done(then=[NewJob("k")]))) for pod in pods), return_exceptions=True
        )
        assert sum(outcome is None for outcome in outcomes) == 1
        children = await rows(pods[0], "SELECT id FROM holdfast.jobs WHERE parent_id = %s", first.id)
        assert len(children) == 1
        first = await take(pods[0], children[0][0])
    await end(pods[0], first)
