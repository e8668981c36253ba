"""A worker's database session as a sign of life: where it has ended, its jobs are taken before its lease is over.

Called by: `worker/presence.py`, once a second, where `HOLDFAST_RESCUE_ON_DISCONNECT` is on. When a process is killed, the
kernel closes its sockets and the server ends its session at once; so do a cut line and `pg_terminate_backend`, though, with
the worker alive. What tells them apart is that who lives comes back: docs/decisions/0014 says why each condition is there.
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

# Behind a pooler the session belongs to the pooler, outlives its client and may be changed under it: its process id is then
# not the one that the client was told when it connected, and there is nothing to publish.
PUBLISH = """
    UPDATE holdfast.workers w SET session_pid = me.pid, session_began = me.backend_start, session_gone_at = NULL
    FROM pg_stat_activity me
    WHERE w.id = ANY (%(workers)s::uuid[]) AND w.stopped_at IS NULL AND me.pid = pg_backend_pid() AND me.pid = %(told)s
      AND (w.session_gone_at IS NOT NULL OR (w.session_pid, w.session_began) IS DISTINCT FROM (me.pid, me.backend_start))
"""
# Only who was connected all the while can tell the end of one session from the end of all: with the server, or at a failover.
# A row of pg_stat_activity that hides its beginning belongs to another role, and may be the one.
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
    """Say that this connection stands for these workers: while it lives, so do they."""
    await conn.execute(PUBLISH, {"workers": arrays.of_words(workers), "told": conn.info.backend_pid})


async def look_for_the_gone(
    conn: psycopg.AsyncConnection[Any], *, grace: timedelta, actor: str = "rescue"
) -> tuple[list[WorkerId], list[JobId]]:
    """Note whose session has ended, and take the jobs of those who have not come back since. Those noted, and the jobs."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NOTE_GONE)
        noted = [WorkerId(row[0]) for row in await cursor.fetchall()]
    return noted, await rescue_disconnected(conn, grace=grace, actor=actor)
