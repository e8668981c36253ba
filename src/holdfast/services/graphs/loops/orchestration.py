"""The loop `instance_orchestration`: move instances on that no job moves.

Usually the start job of an instance waits for the exports of its snapshot, and this loop finds nothing to do. It repairs what a
pruned, cancelled or lost job leaves, so that no state waits for a human.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import psycopg

from holdfast.errors import TermLost
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Result
from holdfast.services.exports import offers
from holdfast.services.exports.offers import SnapshotHead, SnapshotState
from holdfast.services.graphs import measures
from holdfast.services.graphs.instances import delete, move, moving, rows
from holdfast.services.graphs.instances.moving import Moved
from holdfast.services.graphs.loops import pages
from holdfast.services.graphs.setup import graphs_here
from holdfast.services.graphs.states import InstanceState
from holdfast.telemetry.log import log

S = InstanceState
STATES: Final = (S.WAITING_FOR_SNAPSHOT, S.STARTING, S.RESUMING, S.STOPPING)


class Step(StrEnum):
    """What to do with an instance."""

    WAIT = "wait"  # its job or its snapshot goes on
    START = "start"
    REMOVE = "remove"
    FAIL = "fail"
    SKIP = "skip"  # it names no snapshot, which the database refuses; only a person can know what it should load


def decide(one: Moved, head: SnapshotHead | None) -> tuple[Step, str | None]:
    """What to do with an instance, and for a failure why. Pure."""
    if one.job_is_live:
        return Step.WAIT, None
    if one.instance.status is S.STOPPING:
        return Step.REMOVE, None
    if not one.instance.snapshot_id:
        return Step.SKIP, None
    if head is None or head.is_being_deleted:
        return Step.FAIL, "Pending snapshot was deleted before it could complete"
    if head.state is SnapshotState.FAILED:
        return Step.FAIL, f"Snapshot failed: {head.error}"
    if head.state is SnapshotState.CANCELLED:
        return Step.FAIL, "Snapshot creation was cancelled"
    return Step.START, None  # if the snapshot is not ready, the new job waits for its exports


async def orchestrate(ctx: Pass) -> Result:
    """One pass over all instances that should be moving."""
    with measures.measured("instance_orchestration"):
        counts = dict.fromkeys(Step, 0)
        failed = 0
        async for page in pages.pages(ctx, STATES):
            async with ctx.connection() as conn:
                heads = await offers.read_heads(conn, [one.instance.snapshot_id for one in page if one.instance.snapshot_id])
            for one in page:
                step, why = decide(one, heads.get(one.instance.snapshot_id))
                try:
                    if step is Step.SKIP:
                        log.warning("instance_missing_pending_snapshot_id", instance_id=one.id, status=one.instance.status)
                    elif step is not Step.WAIT:
                        await _act(ctx, one, step, why)
                    counts[step] += 1
                except TermLost:
                    raise
                except Exception as error:  # the other instances are still moved
                    failed += 1
                    log.error("instance_orchestration_failed", instance_id=one.id, step=step, error=str(error), exc_info=error)
        acted = counts[Step.START] + counts[Step.REMOVE] + counts[Step.FAIL]
        fields = {"started": counts[Step.START], "removed": counts[Step.REMOVE], "failed_instances": counts[Step.FAIL]}
        return Result(acted, failed, counts[Step.WAIT] + counts[Step.SKIP], fields=fields)


async def _act(ctx: Pass, seen: Moved, step: Step, why: str | None) -> None:
    """One transaction: look again with the row locked, and do it only if nothing has changed."""
    async with ctx.transaction() as conn:
        held = await rows.hold(conn, seen.id, or_none=True)
        if held is None or (held.status, held.job_id) != (seen.instance.status, seen.instance.job_id):
            return
        again = await moving.one(conn, seen.id, STATES)
        if again is None or again.job_is_live:
            return
        if step is Step.FAIL:
            await move.fail(conn, held, "DATA_LOAD_ERROR", str(why))
            log.warning("instance_waiting_failed", instance_id=seen.id, error=why)
        elif step is Step.REMOVE:
            job_id = await delete.again(conn, held)
            log.warning("instance_redriven", instance_id=seen.id, status=held.status, job_id=job_id)
        else:
            await _start(conn, held)


async def _start(conn: psycopg.AsyncConnection[Any], held: rows.Instance) -> None:
    waits_for = await offers.export_jobs(conn, held.snapshot_id) if held.status is S.WAITING_FOR_SNAPSHOT else []
    job_id = await move.start_again(
        conn,
        held,
        held.status,
        memory_mb=held.memory_mb,
        cpu=held.cpu,
        longest=graphs_here().longest_start,
        after=waits_for,
    )
    log.warning("instance_redriven", instance_id=held.id, status=held.status, job_id=job_id)
