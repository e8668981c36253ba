"""Whole jobs through a `Worker` on each transport, and what becomes of them when an answer is lost on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Literal

import pytest
from proof.proxy import Relay, relaying

from conformance.conftest import Api, Make
from factories import moves_of, rows, value
from holdfast import Context, Done, Retry, Submitted, SyncContext, Worker, WorkerOptions
from holdfast.jobs.cancel import cancel
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.views.read import get_job
from holdfast.worker.kinds import Job, job
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.interface import Transport
from holdfast.worker.transports.remote import Remote
from workers import beside, ended, until

QUICK = WorkerOptions(concurrency=4, beat=timedelta(milliseconds=200), lease=timedelta(seconds=30), grace=timedelta(seconds=5))
MOMENT = timedelta(milliseconds=20)


def a_kind(function: Callable[..., Any], **policy: Any) -> Job[..., Any]:
    return job(f"conformance.{function.__name__}", **policy)(function)


def working(transport: Transport, *kinds: Job[..., Any], options: WorkerOptions = QUICK) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(transport, kinds, options))


async def test_many_jobs_are_completed_once_each(make: Make, conn: Any) -> None:
    seen: list[int] = []

    async def count(number: int) -> dict[str, int]:
        seen.append(number)
        return {"number": number}

    kind = a_kind(count)
    await enqueue_many(conn, [kind.new(number=n) for n in range(200)])

    worker = Worker(make(), [kind], QUICK)
    await asyncio.wait_for(worker.run(until_empty=True), 120)

    assert sorted(seen) == list(range(200))
    assert worker.completed == 200
    assert await rows(conn, "SELECT state, count(*) FROM holdfast.jobs GROUP BY state") == [("completed", 200)]
    assert await value(conn, "SELECT count(*) FROM holdfast.history") == 200


async def test_sync_handler_reports_progress_and_passes_its_checkpoint(make: Make, conn: Any) -> None:
    def slow(ctx: SyncContext, number: int) -> dict[str, int]:
        ctx.progress(0.5, f"half, in {threading.current_thread().name}")
        ctx.checkpoint()
        return {"number": number}

    kind = a_kind(slow)
    made = await enqueue(conn, kind.new(number=3))
    async with working(make(), kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.result) == ("completed", {"number": 3})
    assert job_now.message.startswith("half")


async def test_chain_fan_out_and_join(make: Make, conn: Any) -> None:
    order: list[str] = []

    async def first(ctx: Context, left: int) -> Done:
        order.append(f"step {left}")
        return Done(then=[chained.new(left=left - 1) if left else split_kind.new()])

    async def split(ctx: Context) -> None:
        ctx.chain(*[part_kind.new(number=n) for n in range(3)], join=join_kind.new())

    async def part(number: int) -> None:
        order.append("part")

    async def join() -> None:
        order.append("join")

    chained, split_kind, part_kind, join_kind = a_kind(first), a_kind(split), a_kind(part), a_kind(join)
    await enqueue(conn, chained.new(left=5))
    async with working(make(), chained, split_kind, part_kind, join_kind):
        await until(lambda: _is(len(order) == 10))

    assert order == [*(f"step {n}" for n in range(5, -1, -1)), "part", "part", "part", "join"]
    taken_along = "SELECT count(*) FROM holdfast.jobs WHERE parent_id IS NOT NULL AND attempt_no = 1"
    assert await value(conn, taken_along) == 10


async def _is(reached: bool) -> bool:
    return reached


async def test_external_work_is_submitted_polled_and_completed(make: Make, conn: Any) -> None:
    async def query(ctx: Context) -> Any:
        if not ctx.job.is_poll:
            async with ctx.effect("engine.query") as planned:
                planned.made({"id": planned.tag})
            return Submitted({"query": 1}, poll_after=MOMENT)
        return Submitted(ctx.job.handle, poll_after=MOMENT) if ctx.job.poll_count < 3 else Done("ready")

    kind = a_kind(query)
    made = await enqueue(conn, kind.new())
    async with working(make(), kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.result, job_now.poll_count) == ("completed", "ready", 3)
    assert await moves_of(conn, made.id) == ["submit", "submit", "submit", "complete"]
    assert await value(conn, "SELECT state FROM holdfast.effects") == "kept"


async def test_error_is_retried_until_the_budget_is_used(make: Make, conn: Any) -> None:
    tries: list[int] = []

    async def flaky(ctx: Context) -> Retry:
        tries.append(ctx.job.attempt_no)
        return Retry("not yet", delay=timedelta(milliseconds=1))

    kind = a_kind(flaky, max_attempts=3)
    made = await enqueue(conn, kind.new())
    async with working(make(), kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.errors, tries) == ("failed", 3, [1, 2, 3])


async def test_cancelled_job_stops(make: Make, conn: Any) -> None:
    started = asyncio.Event()

    async def endless(ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    kind = a_kind(endless)
    made = await enqueue(conn, kind.new())
    async with working(make(), kind):
        await asyncio.wait_for(started.wait(), 120)
        await cancel(conn, made.id, actor="ada", reason="enough")
        assert (await ended(conn, made.id)).state == "cancelled"


async def test_stop_releases_running_jobs(make: Make, conn: Any) -> None:
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    kind = a_kind(endless)
    made = await enqueue(conn, kind.new())
    async with working(make(), kind, options=WorkerOptions(concurrency=1, grace=MOMENT)):
        await asyncio.wait_for(started.wait(), 120)

    job_now = await get_job(conn, made.id)
    assert (job_now.state, job_now.errors, job_now.crashes) == ("pending", 0, 0)
    assert await moves_of(conn, made.id) == ["release"]
    assert await value(conn, "SELECT lease_until <= clock_timestamp() FROM holdfast.workers")


async def test_jobs_of_a_silent_worker_are_rescued_and_run(make: Make, conn: Any) -> None:
    """Also where every worker is remote: the API sweeps for them."""

    async def work() -> None: ...

    kind = a_kind(work)
    made = await enqueue(conn, kind.new())
    await conn.execute(
        """WITH dead AS (INSERT INTO holdfast.workers (id, name, host, pid, version, lease_until)
                         VALUES (gen_random_uuid(), 'dead', 'h', 1, '0', clock_timestamp()) RETURNING id)
           UPDATE holdfast.jobs SET state = 'running', attempt_id = gen_random_uuid(), attempt_no = 1,
               worker_id = (SELECT id FROM dead), fence_token = 1, claimed_at = clock_timestamp()"""
    )
    async with working(make(), kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.attempt_no) == ("completed", 2)
    assert await moves_of(conn, made.id) == ["rescue", "complete"]


async def test_claim_whose_response_was_lost_is_released(make: Make, conn: Any) -> None:
    async def work() -> None: ...

    kind = a_kind(work)
    options = WorkerOptions(concurrency=1, beat=timedelta(milliseconds=50), lease=timedelta(seconds=30))
    async with working(make(), kind, options=options) as worker:
        await until(lambda: _has_worker(conn))
        await conn.execute(
            """INSERT INTO holdfast.jobs (kind, state, attempt_id, attempt_no, worker_id, fence_token, claimed_at)
               VALUES ('nobody.runs.this', 'running', gen_random_uuid(), 1, %s, 1, clock_timestamp() - interval '1 min')""",
            [worker.id],
        )

        async def is_back() -> bool:
            return bool(await value(conn, "SELECT cause = 'claim_unanswered' FROM holdfast.jobs"))

        await until(is_back)


async def _has_worker(conn: Any) -> bool:
    return bool(await value(conn, "SELECT count(*) = 1 FROM holdfast.workers"))


async def test_remote_worker_fails_a_job_that_needs_the_database_with_the_reason(api: Api, conn: Any) -> None:
    async def publishes(ctx: Context, how: str) -> Any:
        if how == "connection":
            async with ctx.connection() as inner:
                await inner.execute("SELECT 1")
        if how == "enqueue":
            await kind.enqueue(how="not at all")
        return Done(publish=_publish)

    kind = a_kind(publishes)
    ways = [await enqueue(conn, kind.new(how=how)) for how in ("connection", "publish", "enqueue")]
    async with working(Remote(api.url, api.token), kind):
        failed = [await ended(conn, made.id) for made in ways]

    assert [job_now.state for job_now in failed] == ["failed"] * 3
    assert "ctx.connection() needs the database, and a remote worker has none" in failed[0].error
    assert "Done(publish=…) needs the database, and a remote worker has none" in failed[1].error
    assert "a remote worker has none: end with Done(then=[kind.new(...)])" in failed[2].error


async def _publish(conn: Any) -> None:
    await conn.execute("SELECT 1")


# ---------------------------------------------------------------------------------------------------------------------
# An answer is lost
# ---------------------------------------------------------------------------------------------------------------------

When = Literal["before", "after"]
TO_FINISH = {"direct": "COMMIT", "remote": "/finish HTTP"}


@asynccontextmanager
async def cut_once(sort: str, word: str, when: When, database: str, api: Api) -> AsyncIterator[tuple[Transport, Relay]]:
    """A transport whose connection is cut once: before the server gets the request, or before the client gets the answer."""
    async with relaying(api.url if sort == "remote" else database) as relay:
        relay.cut(word, when)
        yield (Remote(relay.url, api.token) if sort == "remote" else Direct(relay.url)), relay


@pytest.mark.parametrize("when", ["before", "after"])
async def test_finish_whose_response_was_lost_is_written_once(
    sort: str, when: When, database: str, conn: Any, api: Api
) -> None:
    """P13: the outcome is looked up under the attempt before anything is written again."""
    ran: list[int] = []

    async def parent(ctx: Context) -> Done:
        ran.append(ctx.job.attempt_no)
        return Done("once", then=[child_kind.new(), child_kind.new()])

    async def child() -> None: ...

    kind, child_kind = a_kind(parent), a_kind(child)
    async with cut_once(sort, TO_FINISH[sort], when, database, api) as (transport, relay):
        made = await enqueue(conn, kind.new())
        async with working(transport, kind, child_kind) as worker:
            job_now = await ended(conn, made.id)
            await until(lambda: _is(worker.completed == 3))
        assert relay.cuts_made == 1

    assert (job_now.state, job_now.result, ran) == ("completed", "once", [1])
    assert await moves_of(conn, made.id) == ["complete"]
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE parent_id = %s", made.id) == 2


@pytest.mark.parametrize("word", ["/completions HTTP", "/chain HTTP", "/claims HTTP", "/progress HTTP", "/beat HTTP"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_lost_responses_of_the_api_lose_no_job(word: str, when: When, database: str, conn: Any, api: Api) -> None:
    async def parent(ctx: Context) -> Done:
        await ctx.progress(0.5, "half")
        return Done(then=[child_kind.new()])

    async def child() -> None: ...

    kind, child_kind = a_kind(parent), a_kind(child)
    options = WorkerOptions(concurrency=2, beat=timedelta(milliseconds=50), lease=timedelta(seconds=2))
    async with cut_once("remote", word, when, database, api) as (transport, relay):
        made = await enqueue(conn, kind.new())
        async with working(transport, kind, child_kind, options=options):
            await until(lambda: _all_over(conn))
            await until(lambda: _is(relay.cuts_made == 1))

    assert (await get_job(conn, made.id)).state == "completed"
    assert await rows(conn, "SELECT state, count(*) FROM holdfast.jobs GROUP BY 1") == [("completed", 2)]
    ends = "SELECT job_id, count(*) FROM holdfast.history WHERE move = 'complete' GROUP BY 1 ORDER BY 1"
    assert [count for _, count in await rows(conn, ends)] == [1, 1]


async def _all_over(conn: Any) -> bool:
    return bool(await value(conn, "SELECT count(*) = 2 AND bool_and(finished_at IS NOT NULL) FROM holdfast.jobs"))
