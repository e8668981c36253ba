"""Two versions of the code side by side: each job is run and polled by a worker that knows its version.

The history checker looks over everything that the system and its workers say.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from proof.checker.check import check
from proof.checker.records import Execution, read_records
from proof.checker.witness import Witness

from conformance.conftest import Make
from conformance.witnessed import Witnessed
from factories import add, column, rows, start_worker, submit, take, value
from holdfast import Context, Done, NewJob, Retry, Submitted, Worker, WorkerOptions
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.renew import WorkerInfo, register, renew
from holdfast.jobs.views.explain import explain
from holdfast.worker.kinds import Job, job
from holdfast.worker.transports.interface import Takes
from workers import beside, until

QUICK = WorkerOptions(concurrency=3, beat=timedelta(milliseconds=100), lease=timedelta(seconds=30))
MOMENT = timedelta(milliseconds=20)
KIND = "skew.render"


def the_kind(version: int) -> Job[..., Any]:
    """The same kind as code of this version has it: it does one thing more than the code before it."""

    async def render(ctx: Context, n: int) -> Any:
        assert ctx.job.kind_version <= version, "this code does not know what it was given"
        if n % 5 == 0 and not ctx.job.is_poll:
            return Submitted({"query": n}, poll_after=MOMENT)
        if n % 7 == 0 and ctx.job.attempt_no == 1:
            return Retry("once more", delay=MOMENT)
        if n % 3 == 0 and n < 1000:
            return Done(version, then=[NewJob(KIND, {"n": 1000 + n}, kind_version=1 + n % 2)])
        return version

    return job(KIND, version=version)(render)


def working(make: Make, version: int, witness: Witness) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(Witnessed(make(), witness), [the_kind(version)], QUICK))  # type: ignore[arg-type]


@pytest.mark.more
async def test_each_job_runs_on_a_worker_of_its_version(make: Make, conn: Any) -> None:
    await conn.execute("CREATE SCHEMA proof; CREATE TABLE proof.published (job_id bigint, attempt_id uuid)")
    witness = Witness()
    for n in range(1, 61):
        begun, new = witness.tick(), NewJob(KIND, {"n": n}, kind_version=1 + n % 2)
        made = await enqueue(conn, new)
        witness.note("enqueue", begun, job=made.id, token=n, spec=new, created=True, data_at=None)

    async def left(versions: tuple[int, ...]) -> bool:
        open_ones = "SELECT count(*) FROM holdfast.jobs WHERE kind_version = ANY (%s) AND finished_at IS NULL"
        return bool(await value(conn, open_ones, list(versions)) == 0)

    async with working(make, 1, witness) as old:
        await until(lambda: left((1,)))
        waiting = await value(conn, "SELECT min(id) FROM holdfast.jobs WHERE kind_version = 2 AND attempt_no = 0")
        assert "it needs version 2 of skew.render; workers know up to 1" in await explain(conn, waiting)
        async with working(make, 2, witness) as new:
            await until(lambda: left((1, 2)))

    ran = await rows(
        conn,
        """SELECT j.kind_version, h.worker_id::text, count(*) FROM holdfast.history h JOIN holdfast.jobs j ON j.id = h.job_id
           WHERE h.attempt_id IS NOT NULL GROUP BY 1, 2""",
    )
    assert {(version, worker) for version, worker, _ in ran} >= {(1, old.id), (2, new.id)}
    assert not [row for row in ran if row[0] == 2 and row[1] != new.id]
    execution = Execution(await read_records(conn, 0), witness)
    assert [str(violation) for violation in check(execution)] == []
    assert len(execution.claims) == sum(count for *_, count in ran)


# ---------------------------------------------------------------------------------------------------------------------
# The guards, one by one
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("known", "gets"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])])
async def test_claim_skips_jobs_of_newer_versions(conn: Any, known: int, gets: list[int]) -> None:
    worker = await start_worker(conn)
    jobs = {version: await add(conn, kind_version=version) for version in (3, 1, 2)}

    for version, job_id in jobs.items():
        one = await claim_by_id(conn, worker, job_id, kinds={"k": known})
        assert (one is not None) == (version in gets)
        await conn.execute(
            """UPDATE holdfast.jobs SET state = 'pending', attempt_id = NULL, worker_id = NULL, deadline_at = NULL
               WHERE state = 'running'"""
        )
    claims = await claim(conn, worker, kinds={"k": known})
    assert sorted(one.kind_version for one in claims) == gets


async def test_heartbeat_does_not_announce_jobs_of_newer_versions(conn: Any) -> None:
    worker = await start_worker(conn)
    await add(conn, kind_version=2)
    lease = timedelta(minutes=1)

    assert not (await renew(conn, worker, lease=lease, kinds={"k": 1})).can_claim
    assert (await renew(conn, worker, lease=lease, kinds={"k": 2})).can_claim
    assert (await renew(conn, worker, lease=lease, kinds=["k"])).can_claim, "who does not say knows them all"


async def test_poll_skips_jobs_of_newer_versions(conn: Any) -> None:
    worker = await start_worker(conn)
    job_id = await add(conn, kind_version=2)
    await submit(conn, await take(conn, job_id, worker))
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp()")

    assert await claim_to_poll(conn, worker, kinds={"k": 1}) == []
    assert await claim_to_poll(conn, worker, kinds={"other": 9}) == []
    assert [one.id for one in await claim_to_poll(conn, worker, kinds={"k": 2})] == [job_id]


async def test_chain_does_not_claim_a_step_of_a_newer_version() -> None:
    takes = Takes({"k": 2}, ("default",))

    assert takes.knows("k", 2)
    assert not takes.knows("k", 3)
    assert not takes.knows("other", 1)


async def test_worker_row_has_its_versions_and_explain_shows_them(conn: Any) -> None:
    job_id = await add(conn, "invoice.render", kind_version=3)
    info = WorkerInfo(await start_worker(conn), "old", "h", 1, "1", kinds={"invoice.render": 2})
    renewed = replace(info, id=type(info.id)("00000000-0000-4000-8000-000000000001"))
    await register(conn, renewed, lease=timedelta(minutes=1))

    assert await value(conn, "SELECT kinds FROM holdfast.workers WHERE name = 'old'") == {"invoice.render": 2}
    assert "needs version 3 of invoice.render; workers know up to 2" in await explain(conn, job_id)
    assert await column(conn, job_id, "attempt_no") == 0
