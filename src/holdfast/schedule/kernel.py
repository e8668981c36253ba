"""The kernel's own loops: rescue, promote, wake, effects, pipeline_status, prune. Started by: the programs in apps/.

Workers do the first four with their heartbeats, too. Every action is a guarded write, so it does not matter which process is
first; the loops do them even when no worker runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import effects, locks, promote, slots
from holdfast.jobs.effects import Cleaner
from holdfast.jobs.model import JobId
from holdfast.jobs.periodic.enqueue_due import enqueue_due
from holdfast.jobs.prune import prune
from holdfast.jobs.rescue import rescue
from holdfast.jobs.store_pipeline_status import store_status
from holdfast.jobs.tallies import sum_up
from holdfast.jobs.views.pipeline_status import FIRST_ID, read_stored_statuses
from holdfast.schedule.context import Pass
from holdfast.schedule.items import Acted, act_on_each, log_failed
from holdfast.schedule.prune import prune_keys, prune_runs
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
    "promote": "Makes delayed jobs that are due claimable, and enqueues periodic jobs that are due.",
    "wake": "Wakes jobs that wait for a lock or a slot which is free.",
    "effects": "Calls the registered cleaners for effects that are no longer needed.",
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
    """Page by page, until none is left. Not in one transaction: `rescue` has one for each worker, and each is a guarded write,
    so a replaced pass does no harm."""
    rescued, more = 0, True
    while more:
        ctx.check()
        async with ctx.connection() as conn:
            jobs = await rescue(conn, limit=PAGE, actor="scheduler")
        if jobs:
            log.warning("jobs_rescued", jobs=jobs)
        rescued, more = rescued + len(jobs), len(jobs) >= PAGE
    return rescued


async def promote_due(ctx: Pass) -> Result:
    """Page by page; one by one if a page has a job that cannot be promoted."""
    promoted, failed, more = 0, 0, True
    while more:
        try:
            async with ctx.transaction() as conn:
                jobs = await promote.promote_due(conn, limit=PAGE)
        except psycopg.DatabaseError as error:
            log_failed(ctx, "page", error)
            each = await _promote_each(ctx)
            promoted, failed, more = promoted + each.done, len(each.failed), False
        else:
            promoted, more = promoted + len(jobs), len(jobs) >= PAGE
    async with ctx.connection() as conn:
        promoted += len(await enqueue_due(conn))
    return Result(promoted, failed)


async def _promote_each(ctx: Pass) -> Acted:
    promoted, failed = 0, list[JobId]()
    more = True
    while more and len(failed) < PAGE:
        async with ctx.connection() as conn:
            due = await promote.find_due(conn, but=failed, limit=PAGE)
        acted = await act_on_each(ctx, due, promote.promote_one)
        promoted, more = promoted + acted.done, len(due) == PAGE
        failed += acted.failed
    return Acted(promoted, failed)


async def wake_forgotten(ctx: Pass) -> Result:
    """The release of a lock wakes its waiters; this finds those that a rare race has missed."""
    acted = await act_on_each(ctx, (locks.wake_forgotten, slots.wake_forgotten), _wake)
    return Result(failed=len(acted.failed))


async def _wake(conn: psycopg.AsyncConnection[Any], wake: Callable[[Any], Awaitable[object]]) -> None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await wake(cursor)


async def clean_effects(ctx: Pass, *, cleaners: Cleaners) -> int:
    """Each cleaning is fenced by itself: it may take long, so it must not run inside a transaction."""
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
    """Read a page, decide (`status_of`, pure), and store each status in its own transaction."""
    changed, failed, after, more = 0, 0, FIRST_ID, True
    while more:
        async with ctx.connection() as conn:
            running = await read_stored_statuses(conn, running=True, after=after, limit=PAGE)
        acted = await act_on_each(ctx, [one for one in running if one.has_changed], store_status)
        changed, failed = changed + acted.done, failed + len(acted.failed)
        after, more = running[-1].id if running else after, len(running) == PAGE
    async with ctx.connection() as conn:
        ended = await read_stored_statuses(conn, running=False, limit=PAGE)
    acted = await act_on_each(
        ctx, ended, store_status
    )  # all of them: each gets a new `checked_at`, so the next pass reads others
    changed += sum(one.has_changed for one in ended if one not in acted.failed)
    failed += len(acted.failed)
    return Result(changed, failed, fields={"pipelines_changed": changed, "failed": failed})


async def prune_old(ctx: Pass, *, retention: timedelta | None, run_retention: timedelta) -> Result:
    """In batches, each in its own transaction. These jobs have ended long ago, so no other process writes to them."""
    counts = {"jobs_pruned": 0, "runs_pruned": 0, "failed": 0}

    async def jobs(conn: psycopg.AsyncConnection[Any]) -> None:
        counts["jobs_pruned"] = await prune(conn, older_than=retention) if retention else 0

    async def runs(conn: psycopg.AsyncConnection[Any]) -> None:
        counts["runs_pruned"] = await prune_runs(conn, older_than=run_retention)

    for step in (jobs, runs, partial(prune_keys, older_than=run_retention), sum_up):
        async with ctx.connection() as conn:
            try:
                await step(conn)
            except psycopg.DatabaseError as error:
                if conn.broken:
                    raise
                counts["failed"] += 1
                log_failed(ctx, getattr(step, "__name__", "prune_keys"), error)
    return Result(counts["jobs_pruned"], counts["failed"], fields=dict(counts))
