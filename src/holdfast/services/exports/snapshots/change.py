"""Change snapshots: cancel, retry, delete, set the lifecycle. Called by: the API.

The lock order is the same everywhere: first the rows of the jobs, then the row of the snapshot (docs/decisions/0013).
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
from holdfast.services.exports.mappings.store import HasDependencies
from holdfast.services.exports.snapshots import read, uses
from holdfast.services.exports.snapshots.states import OPEN, SnapshotState

Conn = psycopg.AsyncConnection[Any]
REMOVE_KIND = "exports.remove"
FILES_EFFECT = "export.files"  # everything at the location of a snapshot; its cleaner is in `remove.py`

HOLD_JOBS = """
    SELECT j.id, j.state FROM holdfast.jobs j JOIN holdfast.exports e ON e.job_id = j.id
    WHERE e.snapshot_id = %(id)s ORDER BY j.id FOR UPDATE OF j
"""


async def hold_jobs(conn: Conn, snapshot_id: int) -> list[tuple[JobId, str]]:
    """Lock the jobs of a snapshot until the transaction ends; their ids and states."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_JOBS, {"id": snapshot_id})
        return [(JobId(job_id), state) for job_id, state in await cursor.fetchall()]


REQUEST_CANCEL = """
    UPDATE holdfast.snapshots SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
        updated_at = clock_timestamp() WHERE id = %(id)s
"""


async def cancel(conn: Conn, snapshot_id: int, *, actor: str, reason: str | None) -> int:
    """Cancel the exports that have not ended; their number. The snapshot is cancelled when the last one has ended."""
    async with conn.transaction():
        await hold_jobs(conn, snapshot_id)
        snapshot = await read.get(conn, snapshot_id)
        if SnapshotState(snapshot.status) not in OPEN:
            raise IllegalMove(
                f"snapshot {snapshot_id} is {snapshot.status}; it can be cancelled only while it is pending or creating"
            )
        await conn.execute(REQUEST_CANCEL, {"id": snapshot_id})
        return await abort(conn, snapshot.pipeline_id, actor=actor, reason=reason or "its snapshot was cancelled")


async def retry(conn: Conn, snapshot_id: int, *, actor: str, reason: str | None) -> list[JobId]:
    """Retry the failed and cancelled exports; their jobs. The trigger on the jobs reopens the snapshot."""
    async with conn.transaction():
        held = await hold_jobs(conn, snapshot_id)
        snapshot = await read.get(conn, snapshot_id)
        if snapshot.deleting_since is not None:
            raise IllegalMove(f"snapshot {snapshot_id} has expired and is being deleted; create a new snapshot")
        if snapshot.status not in (SnapshotState.FAILED, SnapshotState.CANCELLED):
            raise IllegalMove(f"snapshot {snapshot_id} is {snapshot.status}; only failed or cancelled ones can be retried")
        again = [job_id for job_id, state in held if state in ("failed", "cancelled")]
        if not again:
            raise IllegalMove(f"the jobs of snapshot {snapshot_id} have been pruned; create a new snapshot")
        for job_id in again:
            await rerun(conn, job_id, actor=actor, reason=reason or "its snapshot is retried", grant=3)
    return again


HOLD = "SELECT FROM holdfast.snapshots WHERE id = %(id)s FOR UPDATE"
DELETE = "DELETE FROM holdfast.snapshots WHERE id = %(id)s"


async def delete(conn: Conn, snapshot_id: int) -> int:
    """Delete a snapshot that has ended; the id of the job that removes its files, enqueued in the same transaction.

    The job removes the whole folder, not only the recorded files, because failed attempts may have left files there.
    """
    async with conn.transaction():
        await hold_jobs(conn, snapshot_id)
        snapshot = await read.get(conn, snapshot_id)
        if SnapshotState(snapshot.status) in OPEN:
            raise IllegalMove(f"snapshot {snapshot_id} is {snapshot.status}; cancel it first")
        await conn.execute(HOLD, {"id": snapshot_id})
        used_by = await uses.users(conn, snapshot_id)
        if used_by:
            raise HasDependencies(f"snapshot {snapshot_id} is used by {', '.join(used_by[:5])}", uses=len(used_by))
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
    """Set the TTL and the inactivity timeout; None: no limit."""
    parameters = {"id": snapshot_id, "ttl": ttl, "inactivity_timeout": inactivity_timeout}
    if not (await conn.execute(SET_LIFECYCLE, parameters)).rowcount:
        await read.get(conn, snapshot_id)
        raise IllegalMove(f"snapshot {snapshot_id} has expired and is being deleted; create a new snapshot")


# Updated at most once a minute, so that most requests do not write.
NOTE_USE = """
    UPDATE holdfast.snapshots SET last_used_at = clock_timestamp()
    WHERE id = %(id)s AND state = 'ready' AND deleting_since IS NULL
      AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
"""


async def note_use(conn: Conn, snapshot_id: int) -> None:
    """Restart the inactivity timeout of a ready snapshot because its files were requested."""
    await conn.execute(NOTE_USE, {"id": snapshot_id})
