"""The loop `export_reconciliation`: what crashed, what is orphaned, what takes too long, what should have ended.

Nearly everything here has been done already when it looks: by a beat of some worker, by a poll, by the trigger that ends
snapshots. It is the safety net, so every act is a guarded write, and it does not matter who was first.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row

from holdfast.api.config import value_of
from holdfast.errors import ClaimLost, TermLost
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim, WorkerId
from holdfast.jobs.poll import claim_to_poll, fail_longer_than
from holdfast.jobs.renew import WorkerInfo, register, resign
from holdfast.jobs.rescue import rescue
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Result
from holdfast.services.exports import measures
from holdfast.services.exports.export.job import export
from holdfast.services.exports.export.payload import KIND
from holdfast.services.exports.snapshots import settle
from holdfast.services.exports.snapshots.settle import OpenSnapshot
from holdfast.services.exports.worker_claims import fail_held_too_long
from holdfast.telemetry.log import log
from holdfast.worker.context import Context, Lease
from holdfast.worker.direct import OnConnections
from holdfast.worker.execute import execute

NAME: Final = "export_reconciliation"
EVERY: Final = timedelta(seconds=5)
PAGE: Final = 100
ORPHANED_AFTER: Final = timedelta(minutes=30)
ORPHANS_AT_ONCE: Final = 20
ORPHAN_LEASE: Final = timedelta(minutes=5)


async def reconcile(ctx: Pass) -> Result:
    """One pass: stale claims, overlong jobs, orphans, snapshots, gauges."""
    began = time.monotonic()
    stale = await reset_stale_claims(ctx)
    overlong = await fail_overlong(ctx)
    orphans = await ask_orphans(ctx)
    ended, failed = await finalise(ctx)
    async with ctx.connection() as conn:
        await show_gauges(conn)
    measures.passes.inc()
    measures.pass_seconds.observe(time.monotonic() - began)
    counts = {
        "stale_claims_reset": stale,
        "jobs_too_long": overlong,
        "orphans_asked": orphans,
        "snapshots_finalized": ended,
        "failures": failed,
    }
    return Result(stale + overlong + orphans + ended, failed, fields=counts)


# By the lease of their worker and never by their age: an export that takes an hour is not stale.
STALE_CLAIMS = """
    SELECT j.id FROM holdfast.workers w JOIN holdfast.jobs j ON j.worker_id = w.id
    WHERE w.lease_until < clock_timestamp() AND j.kind = 'exports.export' LIMIT %(limit)s
"""


async def reset_stale_claims(ctx: Pass) -> int:
    """Give the jobs of silent workers to others; how many exports were among them."""
    async with ctx.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(STALE_CLAIMS, {"limit": PAGE})
        stale = {row[0] for row in await cursor.fetchall()}
    if not stale:
        return 0
    measures.stale_detected.inc(len(stale))
    async with ctx.transaction() as conn:
        reset = stale & set(await rescue(conn, limit=PAGE, actor=NAME))
    if reset:
        measures.stale_reset.inc(len(reset))
        log.warning("stale_export_claims_reset", jobs=sorted(reset))
    return len(reset)


async def fail_overlong(ctx: Pass) -> int:
    """End what an engine has had for longer than the configured time; what it still does is stopped as an effect."""
    async with ctx.transaction() as conn:
        seconds = await value_of(conn, "export.max_duration_seconds")
        error = f"Export job exceeded maximum duration ({seconds}s)"
        longest = timedelta(seconds=seconds)
        failed = await fail_longer_than(conn, WorkerId(str(uuid4())), kind=KIND, longest=longest, error=error, limit=PAGE)
        while len(failed) < PAGE and (held := await fail_held_too_long(conn, longest=longest, error=error)) is not None:
            failed.append(held)
    if failed:
        log.warning("export_jobs_too_long", jobs=failed, seconds=seconds)
    return len(failed)


# ---------------------------------------------------------------------------------------------------------------------
# Orphans
# ---------------------------------------------------------------------------------------------------------------------

COUNT_ORPHANS = """
    SELECT count(*) FROM (SELECT FROM holdfast.jobs WHERE state = 'submitted' AND kind = 'exports.export'
        AND next_poll_at < (SELECT clock_timestamp()) - %(after)s LIMIT %(limit)s) AS orphans
"""


async def ask_orphans(ctx: Pass) -> int:
    """Ask the engine about submitted exports that no worker has asked about for half an hour: there may be no worker."""
    async with ctx.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_ORPHANS, {"after": ORPHANED_AFTER, "limit": ORPHANS_AT_ONCE})
        ((count,),) = await cursor.fetchall()
    if not count:
        return 0
    me = WorkerInfo(WorkerId(str(uuid4())), NAME, host="scheduler", pid=0, version="loop", runner="in process")
    async with ctx.connection() as conn:
        await register(conn, me, lease=ORPHAN_LEASE)
        claims = await claim_to_poll(conn, me.id, kinds={KIND: export.policy.version}, limit=count)
    try:
        for claim in claims:
            await _ask(ctx, claim)
    finally:
        async with ctx.connection() as conn:
            await resign(conn, me.id)
    return len(claims)


async def _ask(ctx: Pass, claim: Claim) -> None:
    ctx.check()
    lease = Lease(ORPHAN_LEASE.total_seconds() * 0.8)
    try:
        ended = await execute(export, claim, lambda one: Context(one, OnConnections(ctx.connection), lease))
        async with ctx.connection() as conn:
            await finish(conn, claim, ended)
        log.info("export_orphan_asked", job_id=claim.id, move=str(ended.move))
    except (ClaimLost, psycopg.Error) as error:
        log.warning("export_orphan_failed", job_id=claim.id, error=str(error))


# ---------------------------------------------------------------------------------------------------------------------
# Snapshots
# ---------------------------------------------------------------------------------------------------------------------


async def finalise(ctx: Pass) -> tuple[int, int]:
    """Page by page: stop the siblings of what failed, and end what should have ended. Each in a transaction of its own."""
    ended = failed = after = 0
    more = True
    while more:
        async with ctx.connection() as conn:
            page = await settle.read_open(conn, after=after, limit=PAGE)
        for snapshot in page:
            try:
                ended += await _bring_on(ctx, snapshot)
            except TermLost:
                raise
            except Exception as error:  # one snapshot must not keep the others from their end
                failed += 1
                measures.finalization_failures.inc()
                log.error("snapshot_finalization_failed", snapshot_id=snapshot.id, error=str(error), exc_info=error)
        after, more = page[-1].id if page else after, len(page) == PAGE
    return ended, failed


async def _bring_on(ctx: Pass, snapshot: OpenSnapshot) -> int:
    if snapshot.is_spoilt:
        async with ctx.transaction() as conn:
            stopped = await settle.stop_siblings(conn, snapshot)
        log.info("snapshot_siblings_stopped", snapshot_id=snapshot.id, jobs=stopped)
        return 0
    if not snapshot.is_due:
        return 0
    measures.ready_to_finalize.inc()
    async with ctx.transaction() as conn:
        state = await settle.settle(conn, snapshot.id)
    measures.finalized.inc()
    log.warning("snapshot_finalized", snapshot_id=snapshot.id, state=state)
    return 1


async def show_gauges(conn: psycopg.AsyncConnection[Any]) -> None:
    """Set the gauges from the rows."""
    counts = await settle.counts(conn)
    measures.queue_depth.set(counts["pending"])
    for status, count in counts.items():
        measures.jobs_by_status.labels(status).set(count)
    measures.finalization_lag.set(await settle.lag(conn))
