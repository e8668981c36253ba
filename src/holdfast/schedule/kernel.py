"""The kernel's own loops: rescue, promote, wake, effects, pipeline_status, prune. Started by: the programs in apps/.

Workers do the first four with their beats as well. Every act is a guarded write, so it does not matter who is first; here they
are done even when no worker is up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import effects, promote
from holdfast.jobs.effects import Cleaner
from holdfast.jobs.pipeline_status import FIRST, Remembered, read_remembered, remember
from holdfast.jobs.prune import prune
from holdfast.jobs.rescue import rescue
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop, Result
from holdfast.telemetry.log import log

PAGE = 100
Cleaners = Callable[[], Mapping[str, Cleaner]]

INTERVALS = {
    "rescue": timedelta(seconds=5),
    "promote": timedelta(seconds=5),
    "wake": timedelta(seconds=30),
    "effects": timedelta(seconds=10),
    "pipeline_status": timedelta(seconds=60),
    "prune": timedelta(hours=1),
}
MEANINGS = {
    "rescue": "Takes jobs from workers that went silent.",
    "promote": "Puts delayed jobs whose time has come where claims find them.",
    "wake": "Wakes jobs that wait for a lock or a slot which is free.",
    "effects": "Calls the registered cleaners for what nobody needs any more.",
    "pipeline_status": "Notes on each pipeline what its jobs say about it, for lists.",
    "prune": "Removes jobs that ended long ago, and old runs of loops.",
}


def kernel_loops(
    *, retention: timedelta | None = timedelta(days=30), run_retention: timedelta = timedelta(days=7), cleaners: Cleaners = dict
) -> list[Loop]:
    """The loops that the kernel needs. Without `retention` no job is ever pruned."""
    functions: dict[str, Callable[[Pass], Any]] = {
        "rescue": rescue_silent,
        "promote": promote_due,
        "wake": wake_forgotten,
        "effects": partial(clean_effects, cleaners=cleaners),
        "pipeline_status": note_pipelines,
        "prune": partial(prune_old, retention=retention, run_retention=run_retention),
    }
    return [
        Loop(name, function, every=INTERVALS[name], is_quiet=True, description=MEANINGS[name])
        for name, function in functions.items()
    ]


async def rescue_silent(ctx: Pass) -> int:
    """Page by page until nobody is left."""
    rescued, more = 0, True
    while more:
        async with ctx.transaction() as conn:
            jobs = await rescue(conn, limit=PAGE, actor="scheduler")
        if jobs:
            log.warning("jobs_rescued", jobs=jobs)
        rescued, more = rescued + len(jobs), len(jobs) >= PAGE
    return rescued


async def promote_due(ctx: Pass) -> int:
    """Page by page."""
    promoted, more = 0, True
    while more:
        async with ctx.transaction() as conn:
            jobs = await promote.promote_due(conn, limit=PAGE)
        promoted, more = promoted + len(jobs), len(jobs) >= PAGE
    return promoted


async def wake_forgotten(ctx: Pass) -> None:
    """Whoever gives back a lock wakes its waiters; this finds what a rare overlap left."""
    async with ctx.transaction() as conn:
        await promote.wake_forgotten(conn)


async def clean_effects(ctx: Pass, *, cleaners: Cleaners) -> int:
    """Each cleaning is fenced by itself: it may take long, and must not happen inside a transaction."""
    gone, known = 0, cleaners()
    more = bool(known)
    while more:
        ctx.check()
        async with ctx.connection() as conn:
            cleaned = await effects.clean(conn, known, limit=PAGE)
        gone, more = gone + cleaned, cleaned == PAGE
    if gone:
        log.info("effects_cleaned", count=gone)
    return gone


async def note_pipelines(ctx: Pass) -> Result:
    """Observe a page, decide (`status_of`, pure), and note each pipeline in a transaction of its own."""
    changed, after, more = 0, FIRST, True
    while more:
        async with ctx.connection() as conn:
            running = await read_remembered(conn, running=True, after=after, limit=PAGE)
        changed += await _note(ctx, [one for one in running if one.has_changed])
        after, more = running[-1].id if running else after, len(running) == PAGE
    async with ctx.connection() as conn:
        ended = await read_remembered(conn, running=False, limit=PAGE)
    changed += await _note(ctx, ended)  # all of them, so that it is the turn of others next time
    return Result(changed, fields={"pipelines_changed": changed})


async def _note(ctx: Pass, pipelines: list[Remembered]) -> int:
    for pipeline in pipelines:
        async with ctx.transaction() as conn:
            await remember(conn, pipeline)
    return sum(pipeline.has_changed for pipeline in pipelines)


# Passes that found nothing to do are of no interest to anybody after an hour; the newest run of a loop always stays.
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


async def prune_old(ctx: Pass, *, retention: timedelta | None, run_retention: timedelta) -> Result:
    """In bites, each a transaction of its own; what goes has ended long ago, so nobody else wants to write to it."""
    async with ctx.connection() as conn:
        jobs = await prune(conn, older_than=retention) if retention else 0
        runs = await prune_runs(conn, older_than=run_retention)
        await conn.execute(PRUNE_KEYS, {"older_than": run_retention})
    return Result(jobs, fields={"jobs_pruned": jobs, "runs_pruned": runs})


async def prune_runs(conn: psycopg.AsyncConnection[Any], *, older_than: timedelta, bite: int = 1000) -> int:
    """Remove runs of loops that ended more than `older_than` ago."""
    removed: int = 0
    after = 0
    async with conn.cursor(row_factory=tuple_row) as cursor:
        while True:
            await cursor.execute(PRUNE_RUNS, {"older_than": older_than, "after": after, "limit": bite})
            count, last = await cursor.fetchone() or (0, None)
            removed += int(count)
            if last is None:
                return removed
            after = last
