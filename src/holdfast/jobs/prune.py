"""Delete jobs that ended long ago, in small batches. Called by: a periodic loop, and the command line.

A job is deleted with its history, its log lines, its locks and its dependencies, in one transaction. A job with effects that
are neither confirmed as removed nor kept stays until they are. Of live jobs with a long history, old moves are deleted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.given import wrong
from holdfast.jobs.kinds import prune_kinds
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.lazy_log import log

MOVES_KEPT = 1000  # of a live job, however old they are

# Batches go by id and continue after the last one. So no index on `finished_at` is needed, which every job would have to pay
# for.
PRUNE = """
    WITH looked_at AS MATERIALIZED (
        SELECT id, finished_at < (SELECT clock_timestamp()) - %(older_than)s AS old FROM holdfast.jobs
        WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
    ), old AS MATERIALIZED (
        SELECT j.id FROM holdfast.jobs j JOIN looked_at USING (id)
        -- The state is checked again on the locked row: a job that was just rerun keeps its history.
        WHERE looked_at.old AND NOT j.is_current AND j.state IN ('completed', 'failed', 'cancelled')
          AND NOT EXISTS (SELECT FROM holdfast.effects e WHERE e.job_id = j.id AND e.state NOT IN ('gone', 'kept'))
          -- A parent stays while a job waits for it.
          AND NOT EXISTS (SELECT FROM holdfast.dependencies d JOIN holdfast.jobs c ON c.id = d.job_id
                          WHERE d.parent_id = j.id AND c.state = 'blocked')
        ORDER BY j.id LIMIT %(most)s FOR UPDATE OF j SKIP LOCKED
    ), effects AS (DELETE FROM holdfast.effects e USING old WHERE e.job_id = old.id RETURNING e.id),
       lines AS (DELETE FROM holdfast.log_lines l USING old WHERE l.job_id = old.id),
       history AS (DELETE FROM holdfast.history h USING old WHERE h.job_id = old.id),
       gone AS (DELETE FROM holdfast.jobs j USING old
                WHERE j.id = old.id AND j.state IN ('completed', 'failed', 'cancelled') RETURNING j.id)
    SELECT (SELECT count(*) FROM gone), (SELECT max(id) FROM looked_at)
"""
# Without this, a job that snoozes for years would keep every snooze. Only jobs with many attempts are checked, and they are
# rare.
SHORTEN = """
    DELETE FROM holdfast.history h USING (
        SELECT j.id, (SELECT id FROM holdfast.history WHERE job_id = j.id ORDER BY id DESC OFFSET %(keep)s LIMIT 1) AS last
        FROM holdfast.jobs j WHERE j.id > %(after)s AND j.id <= %(last)s AND j.attempt_no > 100
    ) AS long
    WHERE h.job_id = long.id AND h.id <= long.last AND h.at < clock_timestamp() - %(older_than)s
"""
PRUNE_WORKERS = """
    DELETE FROM holdfast.workers w
    WHERE w.lease_until < clock_timestamp() - %(older_than)s
      AND NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id)
"""
PRUNE_PIPELINES = """
    DELETE FROM holdfast.pipelines p
    WHERE p.created_at < clock_timestamp() - %(older_than)s
      AND NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.pipeline_id = p.id)
"""
PRUNE_LOCK_KEYS = """
    WITH unused AS MATERIALIZED (
        SELECT key FROM holdfast.lock_keys k
        WHERE NOT EXISTS (SELECT FROM holdfast.lock_wants w WHERE w.key = k.key)
        ORDER BY key LIMIT %(batch)s FOR UPDATE SKIP LOCKED
    )
    DELETE FROM holdfast.lock_keys k USING unused
    WHERE k.key = unused.key AND NOT EXISTS (SELECT FROM holdfast.lock_holders h WHERE h.key = k.key)
"""


NEXT_JOB = "SELECT min(id) FROM holdfast.jobs WHERE id > %(after)s"


async def _prune_page(conn: psycopg.AsyncConnection[Any], page: dict[str, Any]) -> tuple[int, int | None]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PRUNE, page)
        row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]


async def _skip(conn: psycopg.AsyncConnection[Any], after: int, error: Exception) -> int:
    """Skip the next job, which cannot be deleted, so that the others are deleted."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NEXT_JOB, {"after": after})
        ((job_id,),) = await cursor.fetchall()
    log.error("job_not_pruned", job_id=job_id, error=error_line(error))
    return int(job_id)


async def prune(
    conn: psycopg.AsyncConnection[Any], *, older_than: timedelta, batch: int = 1000, most: int | None = None
) -> int:
    """Delete jobs that ended more than `older_than` ago, at most `most` of them, and the rows that only they used."""
    if not isinstance(older_than, timedelta):
        raise wrong("older_than", older_than, "must be a timedelta; use timedelta(days=…)")
    removed, after, one_by_one = 0, 0, 0
    while most is None or removed < most:
        left = None if most is None else most - removed
        page = {"older_than": older_than, "after": after, "limit": 1 if one_by_one else batch, "most": left}
        try:
            count, last = await _prune_page(conn, page)
        except psycopg.DatabaseError as error:
            if conn.broken:
                raise
            if one_by_one:
                after = await _skip(conn, after, error)
            one_by_one = one_by_one - 1 if one_by_one else batch
            continue
        one_by_one = max(one_by_one - 1, 0)
        removed += count
        if last is None:
            break
        await conn.execute(SHORTEN, {"older_than": older_than, "after": after, "last": last, "keep": MOVES_KEPT})
        after = last
    await prune_kinds(conn)
    for statement in (PRUNE_WORKERS, PRUNE_PIPELINES):
        await conn.execute(statement, {"older_than": older_than})
    while (await conn.execute(PRUNE_LOCK_KEYS, {"batch": batch})).rowcount == batch:
        pass
    return removed
