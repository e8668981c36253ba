"""The loop `export_reconciliation`: rescue stale claims, fail overlong exports, poll orphans, end snapshots.

It is a safety net. Usually a heartbeat of a worker, a poll or the trigger that ends snapshots has already done this. So every
step is a guarded write, and concurrent changes do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg_pool import PoolTimeout

from holdfast.errors import ClaimLost, TermLost
from holdfast.jobs.config import value_of
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim, WorkerId
from holdfast.jobs.poll import claim_to_poll, fail_longer_than
from holdfast.jobs.renew import WorkerInfo, register, resign
from holdfast.jobs.rescue import rescue
from holdfast.jobs.tallies import add_tally
from holdfast.schedule.context import Pass
from holdfast.schedule.items import Acted, act_on_each
from holdfast.schedule.registry import Result
from holdfast.services.exports import figures, measures
from holdfast.services.exports.export.job import export
from holdfast.services.exports.export.payload import KIND
from holdfast.services.exports.snapshots import settle
from holdfast.services.exports.snapshots.settle import OpenSnapshot
from holdfast.services.exports.worker_claims import fail_held_too_long
from holdfast.telemetry.log import log
from holdfast.worker.attempt import run_handler
from holdfast.worker.context import Context, Lease
from holdfast.worker.transports.direct import OnConnections

NAME: Final = "export_reconciliation"
EVERY: Final = timedelta(seconds=5)
PAGE: Final = 100
ORPHANED_AFTER: Final = timedelta(minutes=30)
ORPHANS_AT_ONCE: Final = 20
ORPHAN_LEASE: Final = timedelta(minutes=5)


async def reconcile(ctx: Pass) -> Result:
    """One pass: stale claims, overlong jobs, orphans, snapshots. If a step fails, the others still run."""
    began = time.monotonic()
    done: dict[str, int] = {}
    failed = broken = 0
    for name, step in STEPS.items():
        try:
            acted = await step(ctx)
        except (TermLost, PoolTimeout):
            raise
        except Exception as error:
            broken += 1
            if broken == len(STEPS):
                raise
            acted = Acted(0, [name])
            log.error("export_reconciliation_step_failed", step=name, error=f"{type(error).__name__}: {error}", exc_info=error)
        done[name], failed = acted.done, failed + len(acted.failed)
    measures.passes.inc()
    measures.pass_seconds.observe(time.monotonic() - began)
    return Result(sum(done.values()), failed, fields={**done, "failures": failed})


async def reset_stale_claims(ctx: Pass) -> Acted:
    """Release the jobs of workers whose lease has ended. The age of a job does not matter: an export that takes an hour is not
    stale. `rescue` uses one transaction per worker."""
    ctx.check()
    async with ctx.connection() as conn:
        reset = await figures.exports_among(conn, await rescue(conn, limit=PAGE, actor=NAME))
    if reset:
        log.warning("stale_export_claims_reset", jobs=reset)
    return Acted(len(reset), [])


async def fail_overlong(ctx: Pass) -> Acted:
    """Fail exports that run longer than `export.max_duration_seconds`. Their queries are cancelled as effects."""
    ctx.check()
    async with ctx.connection() as conn:
        seconds = await value_of(conn, "export.max_duration_seconds")
        error = f"Export job exceeded maximum duration ({seconds}s)"
        longest = timedelta(seconds=seconds)
        failed = await fail_longer_than(conn, WorkerId(str(uuid4())), kind=KIND, longest=longest, error=error, limit=PAGE)
        held = await fail_held_too_long(conn, longest=longest, error=error, limit=PAGE)
    ended, not_ended = failed.ended + held.ended, failed.not_ended + held.not_ended
    if ended:
        log.warning("export_jobs_too_long", jobs=ended, seconds=seconds)
    return Acted(len(ended), not_ended)


# ---------------------------------------------------------------------------------------------------------------------
# Orphans
# ---------------------------------------------------------------------------------------------------------------------


async def poll_orphans(ctx: Pass) -> Acted:
    """Poll submitted exports that no worker has polled for half an hour, for example because no worker runs."""
    async with ctx.connection() as conn:
        count = await figures.count_orphans(conn, after=ORPHANED_AFTER, limit=ORPHANS_AT_ONCE)
    if not count:
        return Acted(0, [])
    me = WorkerInfo(WorkerId(str(uuid4())), NAME, host="scheduler", pid=0, version="loop", runner="in process")
    async with ctx.connection() as conn:
        await register(conn, me, lease=ORPHAN_LEASE)
        claims = await claim_to_poll(conn, me.id, kinds={KIND: export.policy.version}, limit=count, begins=False)
    try:
        failed = [claim.id for claim in claims if not await _poll(ctx, claim)]
    finally:
        async with ctx.connection() as conn:
            await resign(conn, me.id)
    return Acted(len(claims) - len(failed), failed)


async def _poll(ctx: Pass, claim: Claim) -> bool:
    ctx.check()
    lease = Lease(ORPHAN_LEASE.total_seconds() * 0.8)
    try:
        ended = await run_handler(export, claim, lambda one: Context(one, OnConnections(ctx.connection), lease))
        async with ctx.connection() as conn:
            await finish(conn, claim, ended)
        log.info("export_orphan_polled", job_id=claim.id, move=str(ended.move))
    except TermLost:
        raise
    except Exception as error:  # the other orphans are still polled
        log.warning("export_orphan_failed", job_id=claim.id, error=f"{type(error).__name__}: {error}")
        return isinstance(error, ClaimLost)
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Snapshots
# ---------------------------------------------------------------------------------------------------------------------


async def finalise(ctx: Pass) -> Acted:
    """Cancel the siblings of failed exports, and end snapshots that should have ended. One transaction per snapshot."""
    ended, after, more = 0, 0, True
    failed: list[int] = []
    while more:
        async with ctx.connection() as conn:
            page = await settle.read_open(conn, after=after, limit=PAGE)
        stopped = await act_on_each(ctx, [one for one in page if one.has_failed], _stop_siblings)
        settled = await act_on_each(ctx, [one for one in page if one.is_due and not one.has_failed], _settle)
        ended += settled.done
        failed += [one.id for one in (*stopped.failed, *settled.failed)]
        await _count_failures(ctx, settled.failed)
        after, more = page[-1].id if page else after, len(page) == PAGE
    return Acted(ended, failed)


async def _stop_siblings(conn: psycopg.AsyncConnection[Any], snapshot: OpenSnapshot) -> None:
    stopped = await settle.stop_siblings(conn, snapshot)
    log.info("snapshot_siblings_stopped", snapshot_id=snapshot.id, jobs=stopped)


async def _settle(conn: psycopg.AsyncConnection[Any], snapshot: OpenSnapshot) -> None:
    state = await settle.settle(conn, snapshot.id)
    log.warning("snapshot_finalized", snapshot_id=snapshot.id, state=state)


async def _count_failures(ctx: Pass, snapshots: list[OpenSnapshot]) -> None:
    """Count failures in the database, where ended snapshots are counted, too."""
    for snapshot in snapshots:
        log.error("snapshot_finalization_failed", snapshot_id=snapshot.id)
    if snapshots:
        async with ctx.transaction() as conn:
            await add_tally(conn, figures.FAILURES, len(snapshots))


STEPS: Final[dict[str, Callable[[Pass], Awaitable[Acted]]]] = {
    "stale_claims_reset": reset_stale_claims,
    "jobs_too_long": fail_overlong,
    "orphans_polled": poll_orphans,
    "snapshots_finalized": finalise,
}
