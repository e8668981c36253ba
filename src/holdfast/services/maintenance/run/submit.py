"""Enqueue a maintenance job: job, lock, run and actions in one transaction. Called by: the API and the loop of policies.

The lock of the table is taken with the enqueue (document 001) and held to the end of the job, so it cannot expire while the job
waits in the queue. With `wait` it is taken when an attempt starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row
from psycopg.types.json import Jsonb

from holdfast.errors import Draining, LockBusy, Refused
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import Enqueued
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.run.request import KIND, Wanted

Conn = psycopg.AsyncConnection[Any]

FIND_DRAIN = """
    SELECT kind, reason FROM holdfast.controls
    WHERE kind IN (%(kind)s, '*') AND drained_at IS NOT NULL ORDER BY kind DESC LIMIT 1
"""


async def refuse_while_draining(conn: Conn) -> None:
    """`Draining` if no new maintenance jobs are accepted. It comes before all other checks of a request."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(FIND_DRAIN, {"kind": KIND})
        row = await cursor.fetchone()
    if row is not None:
        raise Draining(KIND if row[0] == "*" else row[0], row[1])


ADD_RUN = """
    INSERT INTO holdfast.maintenance_runs
        (job_id, catalog, namespace, name, engine, dry_run, requested_by, reason, policy, due_at, not_after, state)
    SELECT j.id, %(catalog)s, %(namespace)s, %(name)s, %(engine)s, %(dry_run)s, %(requested_by)s, %(reason)s, %(policy)s,
        %(due_at)s, %(not_after)s, j.state
    FROM holdfast.jobs j WHERE j.id = %(job_id)s
"""
ADD_ACTION = """
    INSERT INTO holdfast.maintenance_actions (job_id, position, action, parameters)
    VALUES (%(job_id)s, %(position)s, %(action)s, %(parameters)s)
"""


async def submit(conn: Conn, wanted: Wanted, *, requested_by: str) -> Enqueued:
    """Enqueue the job; `TableLocked` if another job has the table. Call it in a transaction.

    For a policy, `created` is false if an earlier job of the same slot still waits: that one does the work.
    """
    try:
        made = await enqueue(conn, wanted.job())
    except LockBusy as busy:
        raise await _locked(conn, wanted.table, busy) from None
    if not made.created:
        return made
    parameters = {
        "job_id": made.id,
        "catalog": wanted.table.catalog,
        "namespace": wanted.table.namespace,
        "name": wanted.table.name,
        "engine": wanted.engine,
        "dry_run": wanted.dry_run,
        "requested_by": requested_by,
        "reason": wanted.reason,
        "policy": wanted.policy,
        "due_at": wanted.due_at,
        "not_after": wanted.not_after,
    }
    await conn.execute(ADD_RUN, parameters)
    actions = [
        {"job_id": made.id, "position": position, "action": action.name, "parameters": Jsonb(action.as_json())}
        for position, action in enumerate(wanted.actions, 1)
    ]
    async with conn.cursor() as cursor:
        await cursor.executemany(ADD_ACTION, actions)
    return made


# ---------------------------------------------------------------------------------------------------------------------
# A table that is locked
# ---------------------------------------------------------------------------------------------------------------------

READ_HOLDER = """
    SELECT r.state, a.action, w.name AS worker, coalesce(h.taken_at, r.created_at) AS acquired_at,
        extract(epoch FROM clock_timestamp() - coalesce(h.taken_at, r.created_at))::float AS age_seconds
    FROM holdfast.maintenance_runs r
    LEFT JOIN holdfast.maintenance_actions a ON a.job_id = r.job_id AND a.status = 'running'
    LEFT JOIN holdfast.jobs j ON j.id = r.job_id LEFT JOIN holdfast.workers w ON w.id = j.worker_id
    LEFT JOIN holdfast.lock_holders h ON h.job_id = r.job_id AND h.key = %(key)s
    WHERE r.job_id = %(job_id)s
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """The job that has a table: what it does, since when, and where."""

    state: str
    action: str | None
    worker: str | None
    acquired_at: datetime
    age_seconds: float

    def sentence(self, job_id: int, *, waits: bool) -> str:
        """Who has the table. Pure."""
        doing = self.action or self.state
        where = f", worker {self.worker}" if self.worker else ""
        has = "is reserved for" if waits else "is held by"
        return f"{has} job {job_id} ({doing}, for {length(self.age_seconds)}{where})"


class TableLocked(Refused):
    """Another job maintains the table, or waits to do so."""

    slug = "table-locked"

    def __init__(self, table: TableRef, busy: LockBusy, holder: Holder | None) -> None:
        said = f"is held by job {busy.holder}" if holder is None else ""
        if holder is not None and busy.holder is not None:
            said = holder.sentence(busy.holder, waits=holder.state == "blocked")
        super().__init__(f"the table {table} {said}; wait for that job, or send `wait: true` to queue behind it")
        self._table, self._busy, self._holder = table, busy, holder

    def members(self) -> dict[str, Any]:
        known = self._holder
        return {
            "table": str(self._table),
            "lock_key": self._busy.key,
            "holder_job_id": self._busy.holder,
            "holder_state": None if known is None else known.state,
            "holder_action": None if known is None else known.action,
            "holder_worker": None if known is None else known.worker,
            "acquired_at": None if known is None else known.acquired_at.isoformat(),
            "age_seconds": None if known is None else round(known.age_seconds, 1),
        }


async def _locked(conn: Conn, table: TableRef, busy: LockBusy) -> TableLocked:
    """The refusal, with what the holder does. The refused job is deleted already, so the transaction can go on reading."""
    return TableLocked(table, busy, await holder_of(conn, busy.holder, busy.key))


async def holder_of(conn: Conn, job_id: int | None, key: str) -> Holder | None:
    """What a job does that has the lock of a table or waits for it; None if it is not a job of ours."""
    async with conn.cursor(row_factory=class_row(Holder)) as cursor:
        await cursor.execute(READ_HOLDER, {"job_id": job_id, "key": key})
        return await cursor.fetchone()


def length(seconds: float) -> str:
    """A duration in its largest unit, as in `4 m`. Pure."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
