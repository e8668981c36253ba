"""Detect dead workers by their database session, to rescue their jobs before the lease expires.

Called by: `worker/presence.py`, once a second, if `HOLDFAST_RESCUE_ON_DISCONNECT` is on. When a process is killed, the
operating system closes its sockets and Postgres ends its session at once. A network failure or `pg_terminate_backend` also ends
the session, but then the worker is alive and reconnects. docs/decisions/0014 gives the reason for each condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.database import arrays
from holdfast.jobs.model import JobId, WorkerId
from holdfast.jobs.rescue import rescue_disconnected

# Behind a connection pooler the session belongs to the pooler and outlives its client. Its process id then differs from the one
# that the client got when it connected, and nothing is published.
PUBLISH = """
    UPDATE holdfast.workers w SET session_pid = me.pid, session_began = me.backend_start, session_gone_at = NULL
    FROM pg_stat_activity me
    WHERE w.id = ANY (%(workers)s::uuid[]) AND w.stopped_at IS NULL AND me.pid = pg_backend_pid() AND me.pid = %(told)s
      AND (w.session_gone_at IS NOT NULL OR (w.session_pid, w.session_began) IS DISTINCT FROM (me.pid, me.backend_start))
"""
# A restart of the server or a failover ends all sessions at once. So only a process that has been connected since before the
# worker's last heartbeat may note that a session has ended.
# pg_stat_activity hides backend_start for sessions of other roles: such a row may be the session, so it counts as present.
NOTE_GONE = """
    UPDATE holdfast.workers w SET session_gone_at = clock_timestamp()
    WHERE w.session_pid IS NOT NULL AND w.session_gone_at IS NULL AND w.lease_until >= clock_timestamp()
      AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id)
      AND w.beat_at > (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
      AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.session_pid
                      AND (a.backend_start IS NULL OR a.backend_start = w.session_began))
    RETURNING w.id::text
"""


async def publish(conn: psycopg.AsyncConnection[Any], workers: Sequence[WorkerId]) -> None:
    """Record this connection as the session of these workers."""
    await conn.execute(PUBLISH, {"workers": arrays.of_words(workers), "told": conn.info.backend_pid})


async def rescue_ended_sessions(
    conn: psycopg.AsyncConnection[Any], *, grace: timedelta, actor: str = "rescue"
) -> tuple[list[WorkerId], list[JobId]]:
    """Note workers whose session has ended, and rescue the jobs of those that have not reconnected within `grace`. Returns the
    workers that were noted, and the jobs that were rescued."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NOTE_GONE)
        noted = [WorkerId(row[0]) for row in await cursor.fetchall()]
    return noted, await rescue_disconnected(conn, grace=grace, actor=actor)
