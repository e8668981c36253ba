"""Cancel, retry, delete, and how long one lives. Called by: people, through the API.

The order of locks is everybody's: the rows of the jobs first, the row of the snapshot after (docs/decisions/0013).
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove
from holdfast.jobs.cancel import abort
from holdfast.jobs.effects import entrust
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.rerun import rerun
from holdfast.services.exports.mappings import store
from holdfast.services.exports.snapshots import read
from holdfast.services.exports.snapshots.states import OPEN, SnapshotState

Conn = psycopg.AsyncConnection[Any]
REMOVE_KIND = "exports.remove"
FILES_EFFECT = "export.files"  # everything at the place of a snapshot; its cleaner is in `export/remove.py`

HOLD_JOBS = """
    SELECT j.id, j.state FROM holdfast.jobs j JOIN holdfast.exports e ON e.job_id = j.id
    WHERE e.snapshot_id = %(id)s ORDER BY j.id FOR UPDATE OF j
"""


async def hold_jobs(conn: Conn, snapshot_id: int) -> list[tuple[JobId, str]]:
    """Lock the jobs of a snapshot until the transaction ends; their ids and states."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_JOBS, {"id": snapshot_id})
        return [(JobId(job_id), state) for job_id, state in await cursor.fetchall()]


ASK_TO_STOP = """
    UPDATE holdfast.snapshots SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
        updated_at = clock_timestamp() WHERE id = %(id)s
"""


async def cancel(conn: Conn, snapshot_id: int, *, actor: str, reason: str | None) -> int:
    """Stop what has not ended; how many exports were cancelled or asked to stop. It is cancelled once the last has ended."""
    async with conn.transaction():
        await hold_jobs(conn, snapshot_id)
        snapshot = await read.get(conn, snapshot_id)
        if SnapshotState(snapshot.status) not in OPEN:
            raise IllegalMove(f"snapshot {snapshot_id} is {snapshot.status}; only one that is being made can be cancelled")
        await conn.execute(ASK_TO_STOP, {"id": snapshot_id})
        return await abort(conn, snapshot.pipeline_id, actor=actor, reason=reason or "its snapshot was cancelled")


async def retry(conn: Conn, snapshot_id: int, *, actor: str, reason: str | None) -> list[JobId]:
    """Run what failed or was cancelled once more, and nothing else; the jobs. Their moves open the snapshot again."""
    async with conn.transaction():
        held = await hold_jobs(conn, snapshot_id)
        snapshot = await read.get(conn, snapshot_id)
        if snapshot.deleting_since is not None:
            raise IllegalMove(f"snapshot {snapshot_id} has expired and is being deleted; make a new snapshot")
        if snapshot.status not in (SnapshotState.FAILED, SnapshotState.CANCELLED):
            raise IllegalMove(f"snapshot {snapshot_id} is {snapshot.status}; only what failed or was cancelled is retried")
        again = [job_id for job_id, state in held if state in ("failed", "cancelled")]
        if not again:
            raise IllegalMove(f"the jobs of snapshot {snapshot_id} have been pruned; make a new snapshot")
        for job_id in again:
            await rerun(conn, job_id, actor=actor, reason=reason or "its snapshot is retried", grant=3)
    return again


DELETE = "DELETE FROM holdfast.snapshots WHERE id = %(id)s"


async def delete(conn: Conn, snapshot_id: int) -> int:
    """Remove a snapshot that has ended; the job that removes its files, enqueued in the same transaction.

    All that is in its place goes, and not only what is named: an attempt that failed may have left something, too.
    """
    async with conn.transaction():
        await hold_jobs(conn, snapshot_id)
        snapshot = await read.get(conn, snapshot_id)
        if SnapshotState(snapshot.status) in OPEN:
            raise IllegalMove(f"snapshot {snapshot_id} is {snapshot.status}; cancel it first")
        await conn.execute(DELETE, {"id": snapshot_id})
        await store.note_use(conn, snapshot.mapping_id)
        made = await enqueue(conn, NewJob(REMOVE_KIND, {"snapshot_id": snapshot_id}, max_attempts=10))
        await entrust(conn, made.id, FILES_EFFECT, [{"to": snapshot.location}])
    return made.id


SET_LIFECYCLE = """
    UPDATE holdfast.snapshots SET ttl = %(ttl)s, inactivity_timeout = %(inactivity_timeout)s, updated_at = clock_timestamp()
    WHERE id = %(id)s AND deleting_since IS NULL
"""


async def set_lifecycle(conn: Conn, snapshot_id: int, ttl: str | None, inactivity_timeout: str | None) -> None:
    """How long it lives, and how long unused; None: for ever."""
    parameters = {"id": snapshot_id, "ttl": ttl, "inactivity_timeout": inactivity_timeout}
    if not (await conn.execute(SET_LIFECYCLE, parameters)).rowcount:
        await read.get(conn, snapshot_id)
        raise IllegalMove(f"snapshot {snapshot_id} has expired and is being deleted; make a new snapshot")


# Kept to the minute, so that most requests do not write.
NOTE_USE = """
    UPDATE holdfast.snapshots SET last_used_at = clock_timestamp()
    WHERE id = %(id)s AND state = 'ready' AND deleting_since IS NULL
      AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
"""


async def note_use(conn: Conn, snapshot_id: int) -> None:
    """Someone has asked for the files of a ready snapshot; its inactivity timeout begins again."""
    await conn.execute(NOTE_USE, {"id": snapshot_id})
