"""Remove old runs of loops, and failed keys of reconcilers that are not found any more. Called by: the loop `prune`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

# Passes that did nothing are removed after an hour; the newest run of each loop always stays.
PRUNE_RUNS = """
    WITH old AS MATERIALIZED (
        SELECT r.id FROM holdfast.loop_runs r JOIN holdfast.loops l USING (name)
        WHERE r.id > %(after)s AND r.outcome NOT IN ('queued', 'running') AND r.id <> l.run_id
          AND r.finished_at < clock_timestamp() - CASE
              WHEN r.outcome = 'success' AND r.trigger = 'schedule' AND r.items + r.failed_items + r.skipped_items = 0
              THEN least(interval '1 hour', %(older_than)s) ELSE %(older_than)s END
        ORDER BY r.id LIMIT %(limit)s
    ), gone AS (DELETE FROM holdfast.loop_runs r USING old WHERE r.id = old.id)
    SELECT count(*), max(id) FROM old
"""
PRUNE_KEYS = "DELETE FROM holdfast.loop_keys WHERE retry_at < clock_timestamp() - %(older_than)s"


async def prune_runs(conn: psycopg.AsyncConnection[Any], *, older_than: timedelta, batch: int = 1000) -> int:
    """Remove runs of loops that ended more than `older_than` ago, in batches, each in its own transaction."""
    removed: int = 0
    after = 0
    async with conn.cursor(row_factory=tuple_row) as cursor:
        while True:
            await cursor.execute(PRUNE_RUNS, {"older_than": older_than, "after": after, "limit": batch})
            count, last = await cursor.fetchone() or (0, None)
            removed += int(count)
            if last is None:
                return removed
            after = last


async def prune_keys(conn: psycopg.AsyncConnection[Any], *, older_than: timedelta) -> None:
    """Delete failed keys whose retry was due more than `older_than` ago: the reconciler does not find them any more."""
    await conn.execute(PRUNE_KEYS, {"older_than": older_than})
