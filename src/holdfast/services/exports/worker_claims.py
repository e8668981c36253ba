"""Claims of custom export workers (the protocol of document 002): repeat lost claims, and record their effects.

Called by: `api/worker_jobs.py` and the loop `export_reconciliation`. Such a worker does not register and sends no idempotency
key, only its worker id. Every claim creates a separate worker row with a separate lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.begin import note_begun
from holdfast.jobs.effects import confirm, plan
from holdfast.jobs.model import CLAIM_COLUMNS, Claim, JobId, Json, WorkerId
from holdfast.jobs.outcome import overdue
from holdfast.jobs.poll import Failed, fail_each
from holdfast.jobs.release import release_worker
from holdfast.jobs.renew import resign
from holdfast.services.exports.export.direct import PREFIX_EFFECT
from holdfast.services.exports.export.payload import KIND
from holdfast.services.exports.export.server_side import QUERY_EFFECT
from holdfast.stores.paths import location_of

Conn = psycopg.AsyncConnection[Any]
VERSION: Final = "protocol"  # of the worker rows that such claims create
LOST_RESPONSE: Final = "its worker claimed again before it sent an update: the response to its claim was lost"
REPEAT_WITHIN: Final = timedelta(minutes=2)  # a client that lost a response retries sooner

# Serialize the requests of one worker id: the second must see the claims of the first.
LOCK_WORKER = "SELECT pg_advisory_xact_lock(hashtextextended('export-claim ' || %(actor)s || ' ' || %(name)s, 0))"
UNANSWERED = """
    SELECT w.id::text FROM holdfast.workers w
    WHERE w.name = %(name)s AND w.host = %(actor)s AND w.version = 'protocol' AND w.stopped_at IS NULL
      AND w.acknowledged_at IS NULL AND w.started_at > clock_timestamp() - %(within)s
      AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id AND (j.handle IS NOT NULL) = %(polls)s)
    ORDER BY w.started_at
"""


async def release_unanswered(conn: Conn, name: str, actor: str, *, polls: bool) -> list[JobId]:
    """Release the jobs of earlier claims of this worker id that have had no update: the response to the claim was lost.

    Call it in the transaction of the next claim, which then gets the same jobs as new attempts. If two processes share a worker
    id, only the one that claimed last holds a job; updates of the other are refused. After two minutes a claim counts as
    answered, so that such processes cannot take a long export from each other forever.
    """
    parameters = {"name": name, "actor": actor, "polls": polls, "within": REPEAT_WITHIN}
    await conn.execute(LOCK_WORKER, parameters)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(UNANSWERED, parameters)
        workers = [WorkerId(row[0]) for row in await cursor.fetchall()]
    released: list[JobId] = []
    for worker in workers:
        released += (await release_worker(conn, worker, actor=name, reason=LOST_RESPONSE)).released
        await resign(conn, worker)
    return released


ACKNOWLEDGE = """
    UPDATE holdfast.workers SET acknowledged_at = clock_timestamp() WHERE id = %(worker_id)s AND acknowledged_at IS NULL
"""


async def acknowledge(conn: Conn, worker_id: WorkerId) -> None:
    """Record that an update arrived, so the worker has received the response to its claim, with all jobs in it."""
    await conn.execute(ACKNOWLEDGE, {"worker_id": worker_id})


async def note_suspects(conn: Conn, worker_id: WorkerId, claims: Sequence[Claim]) -> None:
    """Let those claims begin now whose job was lost before without an update, in a run or a poll. Call it in the transaction of
    the claim.

    Whether such a job had begun is not known, so that loss was not counted as a crash. The next loss of a run is, so that an
    export that kills its worker comes to an end, if the worker claims it alone.
    """
    await note_begun(conn, worker_id, [(one.id, one.attempt_id, 0.0) for one in claims if one.confirm_start])


async def plan_folder(conn: Conn, claim: Claim, prefix: str) -> None:
    """Record the folder of the worker in the effects ledger, so that the files of a failed or cancelled export are removed."""
    detail = {"to": location_of(claim.payload["location"]).url, "prefix": prefix}
    planned = await plan(conn, claim, PREFIX_EFFECT, detail=detail, adoptable=True)
    await confirm(conn, claim, planned, {"prefix": prefix})


async def plan_query(conn: Conn, claim: Claim, handle: dict[str, Json]) -> None:
    """Record the query of the worker in the effects ledger, so that it is cancelled when the job fails or is cancelled."""
    target = {name: claim.payload.get(name) for name in ("engine", "catalog", "schema", "role")}
    detail = {**target, "runtime": handle["runtime"], "prefix": handle["prefix"], "tag": handle["tag"]}
    planned = await plan(conn, claim, QUERY_EFFECT, tag=f"{QUERY_EFFECT}-{claim.attempt_id}", detail=detail, adoptable=True)
    await confirm(conn, claim, planned, handle["query"])


# Claims to run, not to poll: for submitted jobs the time of the submit counts (`fail_longer_than`).
HELD_TOO_LONG = """
    SELECT j.id FROM holdfast.jobs j JOIN holdfast.workers w ON w.id = j.worker_id
    WHERE w.version = 'protocol' AND j.kind = %(kind)s AND j.handle IS NULL
      AND j.claimed_at + least(%(longest)s, j.max_runtime) <= clock_timestamp() AND j.id <> ALL (%(tried)s::bigint[])
    ORDER BY j.id LIMIT 1 FOR UPDATE OF j SKIP LOCKED
"""
READ_CLAIM = f"SELECT {CLAIM_COLUMNS} FROM holdfast.jobs j WHERE j.id = %s"


async def fail_held_too_long(conn: Conn, *, longest: timedelta, error: str, limit: int) -> Failed:
    """Fail exports that a custom worker has held for longer than `longest`, each under its current attempt.

    Holdfast's workers enforce the limit themselves; a custom worker need not.
    """

    async def held(found: JobId) -> list[Claim]:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(READ_CLAIM, [found])
            return [Claim._make(row) for row in await cursor.fetchall()]

    return await fail_each(conn, HELD_TOO_LONG, {"kind": KIND, "longest": longest}, held, overdue(error), limit=limit)
