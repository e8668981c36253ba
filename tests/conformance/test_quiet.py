"""A quiet worker claims nothing, keeps its lease, finishes its jobs, and can claim again later."""

from __future__ import annotations

import asyncio
from typing import Any

from conformance.conftest import Make
from conformance.test_whole_jobs import ended, until, working
from factories import add, state_of, submit, take
from holdfast import Context, Worker
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.quiet import make_quiet
from holdfast.jobs.views.explain import explain
from holdfast.jobs.views.workers import get_worker
from holdfast.worker.kinds import job


async def _make_quiet(conn: Any, worker: Worker) -> None:
    """Tell it, and come back when it knows, and a claim that was under way is done."""

    async def is_registered() -> bool:
        return worker.is_registered

    async def is_quiet() -> bool:
        return worker._prefetch.is_quiet and worker._claiming.is_idle

    await until(is_registered)
    await make_quiet(conn, worker.id)
    await until(is_quiet)


async def _two_more_beats(conn: Any, worker: Worker) -> None:
    """Each looks around, and would have it claim what there is."""
    for _ in range(2):
        before = (await get_worker(conn, worker.id)).beat_at

        async def has_beaten(before: Any = before) -> bool:
            return bool((await get_worker(conn, worker.id)).beat_at > before)

        await until(has_beaten)


async def test_quiet_worker_finishes_its_jobs_and_claims_nothing(make: Make, conn: Any) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @job("quiet.slow")
    async def slow(ctx: Context) -> None:
        begun.set()
        await go_on.wait()

    first = (await enqueue(conn, slow.new())).id
    async with working(make(), slow) as worker:
        await asyncio.wait_for(begun.wait(), 120)
        await _make_quiet(conn, worker)
        second = (await enqueue(conn, slow.new())).id
        other = await take(conn, await add(conn, "something.else"))
        await submit(conn, other)
        await conn.execute(
            "UPDATE holdfast.jobs SET kind = 'quiet.slow', next_poll_at = clock_timestamp() WHERE id = %s", [other.id]
        )
        await _two_more_beats(conn, worker)
        assert [await state_of(conn, one) for one in (first, second, other.id)] == ["running", "pending", "submitted"]
        go_on.set()
        assert (await ended(conn, first)).state == "completed"
        await _two_more_beats(conn, worker)
        assert [await state_of(conn, one) for one in (second, other.id)] == ["pending", "submitted"]

        await make_quiet(conn, worker.id, quiet=False)

        assert (await ended(conn, second)).state == "completed"
        assert (await ended(conn, other.id)).state == "completed"


async def test_second_quiet_keeps_the_first_time_and_the_lease(make: Make, conn: Any) -> None:
    @job("quiet.nothing")
    async def nothing() -> None: ...

    async with working(make(), nothing) as worker:
        await _make_quiet(conn, worker)
        first = await get_worker(conn, worker.id)
        again = await make_quiet(conn, worker.id)

    assert first.quiet_at is not None
    assert (again.quiet_at, again.alive) == (first.quiet_at, True)


async def test_explain_reports_that_only_quiet_workers_run_the_kind(make: Make, conn: Any) -> None:
    @job("quiet.waits")
    async def waits() -> None: ...

    async with working(make(), waits) as worker:
        await _make_quiet(conn, worker)
        waiting = (await enqueue(conn, waits.new())).id

        assert "every worker is quiet" in await explain(conn, waiting)
