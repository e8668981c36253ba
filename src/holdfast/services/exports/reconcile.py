"""The loop `export_reconciliation`: what crashed, what is orphaned, what takes too long, what should have ended.

Nearly everything here has been done already when it looks: by a beat of some worker, by a poll, by the trigger that ends
snapshots. It is the safety net, so every act is a guarded write, and it does not matter who was first.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg_pool import PoolTimeout

from holdfast.api.config import value_of
from holdfast.errors import ClaimLost, TermLost
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
    """One pass: stale claims, overlong jobs, orphans, snapshots. A step that fails as a whole keeps no other from its turn."""
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
    """Give the jobs of silent workers to others, by the lease of their worker and never by their age: an export that takes an
    hour is not stale. Each worker has a transaction of its own (`rescue`)."""
    ctx.check()
    async with ctx.connection() as conn:
        reset = await figures.exports_among(conn, await rescue(conn, limit=PAGE, actor=NAME))
    if reset:
        log.warning("stale_export_claims_reset", jobs=reset)
    return Acted(len(reset), [])


async def fail_overlong(ctx: Pass) -> Acted:
    """End what an engine has had for longer than the configured time; what it still does is stopped as an effect."""
    ctx.check()
    async with ctx.connection() as conn:
        seconds = await value_of(conn, "export.max_duration_seconds")
        error = f"Export job exceeded maximum duration ({seconds}s)"
        longest = timedelta(seconds=seconds)
        failed = await fail_longer_than(conn, WorkerId(str(uuid4())), kind=KIND, longest=longest, error=error, limit=PAGE)
        while len(failed.ended) < PAGE and (held := await fail_held_too_long(conn, longest=longest, error=error)) is not None:
            failed.ended.append(held)
    if failed.ended:
        log.warning("export_jobs_too_long", jobs=failed.ended, seconds=seconds)
    return Acted(len(failed.ended), failed.not_ended)


# ---------------------------------------------------------------------------------------------------------------------
# Orphans
# ---------------------------------------------------------------------------------------------------------------------


async def ask_orphans(ctx: Pass) -> Acted:
    """Ask the engine about submitted exports that no worker has asked about for half an hour: there may be no worker."""
    async with ctx.connection() as conn:
        count = await figures.count_orphans(conn, after=ORPHANED_AFTER, limit=ORPHANS_AT_ONCE)
    if not count:
        return Acted(0, [])
    me = WorkerInfo(WorkerId(str(uuid4())), NAME, host="scheduler", pid=0, version="loop", runner="in process")
    async with ctx.connection() as conn:
        await register(conn, me, lease=ORPHAN_LEASE)
        claims = await claim_to_poll(conn, me.id, kinds={KIND: export.policy.version}, limit=count)
    try:
        failed = [claim.id for claim in claims if not await _ask(ctx, claim)]
    finally:
        async with ctx.connection() as conn:
            await resign(conn, me.id)
    return Acted(len(claims) - len(failed), failed)


async def _ask(ctx: Pass, claim: Claim) -> bool:
    ctx.check()
    lease = Lease(ORPHAN_LEASE.total_seconds() * 0.8)
    try:
        ended = await execute(export, claim, lambda one: Context(one, OnConnections(ctx.connection), lease))
        async with ctx.connection() as conn:
            await finish(conn, claim, ended)
        log.info("export_orphan_asked", job_id=claim.id, move=str(ended.move))
    except TermLost:
        raise
    except Exception as error:  # one engine's answer must not keep the others from being asked
        log.warning("export_orphan_failed", job_id=claim.id, error=f"{type(error).__name__}: {error}")
        return isinstance(error, ClaimLost)
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Snapshots
# ---------------------------------------------------------------------------------------------------------------------


async def finalise(ctx: Pass) -> Acted:
    """Page by page: stop the siblings of what failed, and end what should have ended. Each in a transaction of its own."""
    ended, after, more = 0, 0, True
    failed: list[int] = []
    while more:
        async with ctx.connection() as conn:
            page = await settle.read_open(conn, after=after, limit=PAGE)
        stopped = await act_on_each(ctx, [one for one in page if one.is_spoilt], _stop_siblings)
        settled = await act_on_each(ctx, [one for one in page if one.is_due and not one.is_spoilt], _settle)
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
    """In the database, where those that came to their end are counted too."""
    for snapshot in snapshots:
        log.error("snapshot_finalization_failed", snapshot_id=snapshot.id)
    if snapshots:
        async with ctx.transaction() as conn:
            await add_tally(conn, figures.FAILURES, len(snapshots))


STEPS: Final[dict[str, Callable[[Pass], Awaitable[Acted]]]] = {
    "stale_claims_reset": reset_stale_claims,
    "jobs_too_long": fail_overlong,
    "orphans_asked": ask_orphans,
    "snapshots_finalized": finalise,
}
