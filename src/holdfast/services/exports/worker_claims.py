"""Claims of workers that speak the protocol of document 002: given again when their answer was lost, and in the ledger.

Called by: `api/worker_jobs.py` and the loop `export_reconciliation`. Such a worker registers nothing and sends no idempotency
key; all that is known of it is the worker id that it sends. Every claim is a worker row of its own, with a lease of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.effects import confirm, plan
from holdfast.jobs.finish import finish
from holdfast.jobs.model import CLAIM_COLUMNS, Claim, JobId, Json, WorkerId
from holdfast.jobs.outcome import overdue
from holdfast.jobs.release import release_worker
from holdfast.jobs.renew import resign
from holdfast.services.exports.export.direct import PREFIX_EFFECT
from holdfast.services.exports.export.payload import KIND
from holdfast.services.exports.export.server_side import QUERY_EFFECT
from holdfast.services.exports.stores.paths import location_of

Conn = psycopg.AsyncConnection[Any]
VERSION: Final = "protocol"  # of the worker rows that such claims make
LOST_ANSWER: Final = "its worker claimed again without having updated it: the answer to its claim was lost"
GIVEN_AGAIN_WITHIN: Final = timedelta(minutes=2)  # a client that lost an answer asks again sooner

# Two requests of one worker id come one after the other: the second must see what the first has claimed.
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('export-claim ' || %(actor)s || ' ' || %(name)s, 0))"
UNANSWERED = """
    SELECT w.id::text FROM holdfast.workers w
    WHERE w.name = %(name)s AND w.host = %(actor)s AND w.version = 'protocol' AND w.stopped_at IS NULL
      AND w.acknowledged_at IS NULL AND w.started_at > clock_timestamp() - %(within)s
      AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id AND (j.handle IS NOT NULL) = %(polls)s)
    ORDER BY w.started_at
"""


async def give_back_unanswered(conn: Conn, name: str, actor: str, *, polls: bool) -> list[JobId]:
    """Release what earlier claims of this worker id hold if no update has come for them: their answer was lost.

    Call it in the transaction of the next claim, which then gets the same jobs as new attempts. So of two processes that share
    a worker id only the one that claimed last holds a job; the attempt of the other is refused. After two minutes a claim
    counts as answered, so that such processes cannot take a long export from each other for ever.
    """
    parameters = {"name": name, "actor": actor, "polls": polls, "within": GIVEN_AGAIN_WITHIN}
    await conn.execute(ONE_AT_A_TIME, parameters)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(UNANSWERED, parameters)
        workers = [WorkerId(row[0]) for row in await cursor.fetchall()]
    released: list[JobId] = []
    for worker in workers:
        released += (await release_worker(conn, worker, actor=name, reason=LOST_ANSWER)).released
        await resign(conn, worker)
    return released


ACKNOWLEDGE = """
    UPDATE holdfast.workers SET acknowledged_at = clock_timestamp() WHERE id = %(worker_id)s AND acknowledged_at IS NULL
"""


async def acknowledge(conn: Conn, worker_id: WorkerId) -> None:
    """An update has come: the worker has the answer of its claim, which named every job in it."""
    await conn.execute(ACKNOWLEDGE, {"worker_id": worker_id})


async def plan_folder(conn: Conn, claim: Claim, prefix: str) -> None:
    """Write down where the worker will write, so that what a failed or cancelled export leaves is removed."""
    detail = {"to": location_of(claim.payload["location"]).url, "prefix": prefix}
    planned = await plan(conn, claim, PREFIX_EFFECT, detail=detail, adoptable=True)
    await confirm(conn, claim, planned, {"prefix": prefix})


async def plan_query(conn: Conn, claim: Claim, handle: dict[str, Json]) -> None:
    """Write down which query the worker has submitted, so that it is stopped when its job ends otherwise."""
    asked = {name: claim.payload.get(name) for name in ("engine", "catalog", "schema", "role")}
    detail = {**asked, "runtime": handle["runtime"], "prefix": handle["prefix"], "tag": handle["tag"]}
    planned = await plan(conn, claim, QUERY_EFFECT, tag=f"{QUERY_EFFECT}-{claim.attempt_id}", detail=detail, adoptable=True)
    await confirm(conn, claim, planned, handle["query"])


# Held to run and not to poll: what is submitted is ended by the time at which it was.
HELD_TOO_LONG = f"""
    SELECT {CLAIM_COLUMNS} FROM holdfast.jobs j JOIN holdfast.workers w ON w.id = j.worker_id
    WHERE w.version = 'protocol' AND j.kind = %(kind)s AND j.handle IS NULL
      AND j.claimed_at + least(%(longest)s, j.max_runtime) <= clock_timestamp()
    ORDER BY j.id LIMIT 1 FOR UPDATE OF j SKIP LOCKED
"""


async def fail_held_too_long(conn: Conn, *, longest: timedelta, error: str) -> JobId | None:
    """End one export that such a worker has run for longer than `longest`, under the attempt that holds it; which one.

    Nothing else ends it: an own worker watches its own time, this one reports when it likes.
    """
    async with conn.transaction():
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(HELD_TOO_LONG, {"kind": KIND, "longest": longest})
            row = await cursor.fetchone()
        if row is None:
            return None
        claim = Claim._make(row)
        await finish(conn, claim, overdue(error))
    return claim.id
