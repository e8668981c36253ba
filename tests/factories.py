"""Short words for what nearly every test of the kernel needs: a worker, a job, a claim, a holder that was replaced.

Time is moved by moving rows, and a race is stepped: `waits` tells when the other side has come to the lock in its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.declare import Declaration, as_json, digest_of
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import finish
from holdfast.jobs.kinds import PUBLISH
from holdfast.jobs.model import Claim, JobId, NewJob, WorkerId
from holdfast.jobs.outcome import Submitted, decide
from holdfast.jobs.payload import to_json
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.renew import WorkerInfo, register
from holdfast.jobs.rescue import rescue
from holdfast.jobs.views.read import JobView, get_job

Conn = psycopg.AsyncConnection[Any]

KIND = "k"
OVER_HTTP = ("k", "other", "mine", "traced", "a.kind", "invoice.render", "export", "client.says")
LEASE = timedelta(minutes=5)
EXPIRED = timedelta(seconds=-1)  # a lease that was over before it began
HOUR = timedelta(hours=1)


# ---------------------------------------------------------------------------------------------------------------------
# Workers, jobs, claims
# ---------------------------------------------------------------------------------------------------------------------


async def start_worker(conn: Conn, name: str = "worker", *, lease: timedelta = LEASE, **says: Any) -> WorkerId:
    """A new incarnation that has just announced itself; both transports may act for it."""
    says = {"runner": "remote"} | says
    worker = WorkerInfo(WorkerId(str(uuid4())), name, host="host", pid=1, version="1", **says)
    await register(conn, worker, lease=lease)
    return worker.id


def publish_kinds(url: str, *declared: Declaration) -> None:
    """Have a worker published these kinds; without any: those that tests enqueue over HTTP, which take every payload."""
    said = [as_json(one) for one in declared or map(Declaration, OVER_HTTP)]
    parameters = {
        "worker": "test",
        "kinds": [one["kind"] for one in said],
        "versions": [one["version"] for one in said],
        "declarations": [to_json(one) for one in said],
        "digests": [digest_of(one) for one in said],
    }
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(PUBLISH, parameters)


async def add(conn: Conn, kind: str = KIND, **fields: Any) -> JobId:
    """Enqueue a job; its id."""
    return (await enqueue(conn, NewJob(kind, **fields))).id


async def take(conn: Conn, job_id: int, worker: WorkerId | None = None) -> Claim:
    """Claim this job, which must work."""
    claim = await claim_by_id(conn, worker or await start_worker(conn), JobId(job_id))
    assert claim is not None, f"job {job_id} could not be claimed"
    return claim


async def hold(conn: Conn, kind: str = KIND, *, worker: WorkerId | None = None, **fields: Any) -> Claim:
    """Enqueue a job and claim it."""
    return await take(conn, await add(conn, kind, **fields), worker)


async def end(conn: Conn, claim: Claim, ended_with: object = None) -> None:
    """End an attempt with the value or exception that a handler might end with."""
    await finish(conn, claim, decide(claim, ended_with))


async def submit(conn: Conn, claim: Claim, handle: Any = "query-1", poll_after: timedelta | None = None) -> None:
    """Hand the work of an attempt to an external engine."""
    await end(conn, claim, Submitted(handle, poll_after))


async def poll(conn: Conn, job_id: int, *, kind: str = KIND, worker: WorkerId | None = None) -> Claim:
    """Make the next look at the engine due, and claim it, which must work."""
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE id = %s", [job_id])
    claims = await claim_to_poll(conn, worker or await start_worker(conn), kinds=[kind], limit=1)
    assert [claim.id for claim in claims] == [job_id], f"job {job_id} could not be claimed to poll"
    return claims[0]


async def silence(conn: Conn, *claims: Claim) -> None:
    """The workers of these claims went silent: their leases are over."""
    workers = [claim.worker_id for claim in claims]
    await conn.execute(
        "UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s' WHERE id = ANY (%s::uuid[])", [workers]
    )


async def lose(conn: Conn, claim: Claim) -> None:
    """The worker went silent and the job was taken from it."""
    await silence(conn, claim)
    assert claim.id in await rescue(conn)


async def replace(conn: Conn, claim: Claim) -> Claim:
    """The worker went silent, the job was taken from it, and somebody else runs it now."""
    await lose(conn, claim)
    await make_due(conn, claim.id)
    return await take(conn, claim.id)


async def make_due(conn: Conn, job_id: int) -> None:
    """The time of a delayed job has come."""
    await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE id = %s AND state = 'pending'", [job_id])


# ---------------------------------------------------------------------------------------------------------------------
# Looking
# ---------------------------------------------------------------------------------------------------------------------


async def rows(conn: Conn, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """All rows, as tuples whatever the connection makes of them."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, parameters or None)
        return await cursor.fetchall()


async def value(conn: Conn, statement: str, *parameters: Any) -> Any:
    """The one value of the one row."""
    ((found,),) = await rows(conn, statement, *parameters)
    return found


async def job(conn: Conn, job_id: int) -> JobView:
    return await get_job(conn, JobId(job_id))


async def state_of(conn: Conn, job_id: int) -> str:
    return str((await job(conn, job_id)).state)


async def column(conn: Conn, job_id: int, name: str) -> Any:
    """One column of a job that people do not see."""
    return await value(conn, f"SELECT {name} FROM holdfast.jobs WHERE id = %s", job_id)


async def moves_of(conn: Conn, job_id: int) -> list[str]:
    """The moves in a job's history, oldest first."""
    return [move for (move,) in await rows(conn, "SELECT move FROM holdfast.history WHERE job_id = %s ORDER BY id", job_id)]


async def holders_of(conn: Conn, key: str) -> list[int]:
    """The jobs that hold a lock."""
    found = await rows(conn, "SELECT job_id FROM holdfast.lock_holders WHERE key = %s ORDER BY permit", key)
    return [job_id for (job_id,) in found]


KERNEL = (
    *("jobs", "history", "workers", "controls", "pipelines", "dependencies"),
    *("lock_keys", "lock_wants", "lock_holders", "effects", "log_lines"),
)
TABLES = (*KERNEL, "loops", "loop_runs", "loop_keys")


async def everything(conn: Conn) -> dict[str, list[str]]:
    """Every row of every table, to show that a refusal changed nothing at all."""
    return {
        table: [line for (line,) in await rows(conn, f"SELECT t::text FROM holdfast.{table} t ORDER BY 1")] for table in TABLES
    }


async def clock(conn: Conn) -> Any:
    """The only clock that counts."""
    return await value(conn, "SELECT clock_timestamp()")


# ---------------------------------------------------------------------------------------------------------------------
# Stepping
# ---------------------------------------------------------------------------------------------------------------------


WAITS_FOR = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"


async def waits(observer: Conn, waiting: Conn) -> None:
    """Come back when the other connection waits for a lock that somebody holds."""
    async with asyncio.timeout(60):
        while await value(observer, WAITS_FOR, waiting.info.backend_pid) != "Lock":
            await asyncio.sleep(0.002)


async def together(*work: Awaitable[Any]) -> list[Any]:
    """All at once; what has not come to an end after a minute never will."""
    async with asyncio.timeout(60):
        return list(await asyncio.gather(*work))


async def never_wait(conn: Conn) -> None:
    """From here on this connection fails where it would have to wait for somebody else's lock."""
    await conn.execute("SET lock_timeout = '500ms'")
