"""Delete instances: any state → stopping, then a job removes the graph server, and the row last. Called by: the API, the loop
`instance_lifecycle`.

A crash at any step leaks nothing: the removal is recorded as an effect in the transaction that marks the row, and the row stays
until the runtime has confirmed that nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import JobId
from holdfast.services.exports import offers
from holdfast.services.exports.offers import SnapshotState
from holdfast.services.graphs.instances.create import user_of
from holdfast.services.graphs.instances.jobs import enqueue_removal
from holdfast.services.graphs.instances.rows import Instance, get, hold
from holdfast.services.graphs.states import InstanceState

Conn = psycopg.AsyncConnection[Any]

STOP = "UPDATE holdfast.graph_instances SET state = 'stopping', job_id = %(job_id)s WHERE id = %(id)s AND state = %(state)s"


async def begin(conn: Conn, instance_id: int, *, actor: str, reason: str | None = None) -> JobId:
    """→ stopping; the job that removes it. A deletion that has begun is continued by its job."""
    job_id = await begin_if(conn, instance_id, lambda _: True, actor=actor, reason=reason)
    assert job_id is not None
    return job_id


async def begin_if(
    conn: Conn, instance_id: int, still: Callable[[Instance], bool], *, actor: str, reason: str | None = None
) -> JobId | None:
    """The same if the condition still holds when the row is locked; None if not."""
    async with conn.transaction():
        await _cancel_snapshot(conn, await get(conn, instance_id), actor)
        instance = await hold(conn, instance_id)
        if not still(instance):
            return None
        if instance.status is InstanceState.STOPPING:
            return JobId(instance.job_id)
        job_id = await enqueue_removal(conn, instance_id, "delete")
        await conn.execute(STOP, {"id": instance_id, "state": instance.status, "job_id": job_id})
        with suppress(IllegalMove):  # the job that moved it has ended
            await cancel(conn, JobId(instance.job_id), actor=actor, reason=reason or f"graph instance {instance_id} is deleted")
    return job_id


async def _cancel_snapshot(conn: Conn, instance: Instance, actor: str) -> None:
    """Stop the exports of a snapshot that was made for this instance and that is not ready: nobody else can load it yet.

    First of all, because the end of an export locks its own row and then the row of the start job that waits for it.
    """
    if instance.status is not InstanceState.WAITING_FOR_SNAPSHOT or not instance.made_snapshot:
        return
    head = (await offers.read_heads(conn, [instance.snapshot_id])).get(instance.snapshot_id)
    if head is not None and head.state in (SnapshotState.PENDING, SnapshotState.CREATING):
        with suppress(IllegalMove):  # it has ended meanwhile
            await offers.cancel_snapshot(conn, head.id, actor=actor, reason=f"graph instance {instance.id} was deleted")


REMOVE_ROW = "DELETE FROM holdfast.graph_instances WHERE id = %(id)s AND state = 'stopping' RETURNING snapshot_id"


async def remove_row(conn: Conn, instance_id: int) -> bool:
    """The last step: the runtime has confirmed that nothing is left. False: the row is gone already."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(REMOVE_ROW, {"id": instance_id})
        row = await cursor.fetchone()
    if row is None:
        return False
    await offers.release(conn, row[0], user_of(instance_id))
    return True


REDRIVE = """
    UPDATE holdfast.graph_instances SET job_id = %(job_id)s WHERE id = %(id)s AND state = 'stopping' AND job_id = %(was)s
"""


async def again(conn: Conn, instance: Instance) -> JobId:
    """A new job for a deletion whose job has ended without deleting the row."""
    job_id = await enqueue_removal(conn, instance.id, "delete")
    await conn.execute(REDRIVE, {"id": instance.id, "job_id": job_id, "was": instance.job_id})
    return job_id
