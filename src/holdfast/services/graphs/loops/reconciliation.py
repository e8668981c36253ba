"""The loop `reconciliation`: compare what the runtime has with what the database says, and repair the difference.

The database is right: what no instance has is removed, and an instance whose graph server is gone is set to failed. It detects
anomalies, because deletions remove their objects themselves: the number of orphans is expected to be 0. If the runtime cannot
list everything, the pass changes nothing: unknown is not empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.errors import TermLost
from holdfast.jobs.tallies import add_tally
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Result
from holdfast.services.graphs import measures
from holdfast.services.graphs.instances import move, moving, suspects
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.loops import pages
from holdfast.services.graphs.loops.drift import Finding, is_orphan, judge, refuse_too_many
from holdfast.services.graphs.loops.listed import Listed
from holdfast.services.graphs.runtimes.interface import Observed, Unknown
from holdfast.services.graphs.setup import Graphs, graphs_here
from holdfast.services.graphs.states import InstanceState
from holdfast.telemetry.log import log


@dataclass(slots=True)
class Found:
    """What a pass has found."""

    orphans: list[Observed] = field(default_factory=list)
    findings: list[tuple[Instance, Finding]] = field(default_factory=list)
    expected: int = 0  # instances that should have a graph server


async def reconcile(ctx: Pass) -> Result:
    """One pass: list the runtime, read the instances, repair."""
    here = graphs_here()
    with measures.measured("reconciliation"):
        async with ctx.connection() as conn:
            listed_at = await moving.now(conn)
        try:
            listed = Listed(await here.runtime.observe())
        except Unknown as error:
            log.warning("reconciliation_skipped", error=str(error))
            return Result(0, 0, 1, fields={"skipped_because": str(error)})
        found = await _compare(ctx, here, listed, listed_at)
        refuse_too_many("instances have no graph server", len(found.findings), found.expected, is_manual=ctx.is_manual)
        refuse_too_many("graph servers have no instance", len(found.orphans), len(listed), is_manual=ctx.is_manual)
        handled, broken = await _fail_instances(ctx, here, found.findings)
        cleaned, not_cleaned = await _remove_orphans(ctx, here, found.orphans)
        fields = {
            "orphaned_pods_cleaned": cleaned,
            "missing_pods_handled": handled["missing"],
            "status_drift_fixed": handled["drift"],
        }
        return Result(cleaned + sum(handled.values()), broken + not_cleaned, fields=fields)


async def _compare(ctx: Pass, here: Graphs, listed: Listed, listed_at: datetime) -> Found:
    """Everything that does not fit. Only what is wrong is remembered."""
    found = Found()
    age = here.min_age
    async for page in pages.pages(ctx, tuple(InstanceState)):
        for row in page:
            seen = listed.of(row.id)
            found.expected += row.instance.status is InstanceState.RUNNING
            own = next((one for one in seen if one.start_token == row.instance.start_token), None)
            finding = judge(row, own, listed_at=listed_at, min_age=age)
            if finding is not None:
                found.findings.append((row.instance, finding))
            found.orphans += [one for one in seen if is_orphan(one, row, listed_at=listed_at, min_age=age)]
    found.orphans += [one for one in listed.rest() if is_orphan(one, None, listed_at=listed_at, min_age=age)]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Instances without a graph server
# ---------------------------------------------------------------------------------------------------------------------

TALLY = {
    "missing": ("missing_pods_detected", "missing_pods_handled"),
    "drift": ("status_drift_detected", "status_drift_fixed"),
}


async def _fail_instances(ctx: Pass, here: Graphs, findings: Sequence[tuple[Instance, Finding]]) -> tuple[dict[str, int], int]:
    handled, broken = {"missing": 0, "drift": 0}, 0
    for instance, finding in findings:
        what = {"instance_id": instance.id, "name": instance.runtime_name}
        if finding.kind == "missing":
            log.warning("missing_pod_detected", message=finding.message, **what)
        else:
            log.warning("status_drift_detected", message=finding.message, **what)
        try:
            handled[finding.kind] += await _fail(ctx, here, instance, finding)
        except TermLost:
            raise
        except Exception as error:  # the other instances are still handled
            broken += 1
            log.error("reconciliation_item_failed", error=str(error), exc_info=error, **what)
    return handled, broken


async def _fail(ctx: Pass, here: Graphs, instance: Instance, finding: Finding) -> bool:
    """Look once more, and fail the instance if it is still in the state and start in which it was seen."""
    again = await here.runtime.look(instance.id)
    is_there = again is not None and again.start_token == instance.start_token and again.phase != "failed"
    if is_there:
        return False
    tail = await here.runtime.logs(instance.id, 50)
    async with ctx.transaction() as conn:
        detected, done = TALLY[finding.kind]
        await add_tally(conn, detected)
        if not await move.fail(conn, instance, finding.code, finding.message, log_tail=tail.replace("\x00", "") or None):
            return False
        await add_tally(conn, done)
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Graph servers without an instance
# ---------------------------------------------------------------------------------------------------------------------


async def _remove_orphans(ctx: Pass, here: Graphs, orphans: Sequence[Observed]) -> tuple[int, int]:
    """Remove what two passes in a row have seen; how many are gone, and how many could not be removed."""
    passes = await _suspect(ctx, orphans)
    cleaned = failed = 0
    for orphan in orphans:
        if passes[orphan.instance_id, orphan.start_token] < 2:
            continue
        what = {"instance_id": orphan.instance_id, "name": orphan.name, "start": orphan.start_token}
        log.error("orphaned_pod_detected", severity="BUG_INDICATOR", phase=orphan.phase, **what)
        ctx.check()
        try:
            if await here.runtime.remove(orphan.instance_id, start_token=orphan.start_token):
                cleaned += 1
                await _note(ctx, "orphaned_pods_cleaned", orphan)
                log.info("orphaned_pod_deleted", **what)
        except TermLost:
            raise
        except Exception as error:  # the other orphans are still removed
            failed += 1
            await _note(ctx, "orphaned_pods_cleanup_failures")
            log.error("orphaned_pod_deletion_failed", error=str(error), **what)
    return cleaned, failed


async def _suspect(ctx: Pass, orphans: Sequence[Observed]) -> dict[tuple[int, str], int]:
    """In how many passes in a row each of them was seen. Each is counted once, by the second pass."""
    async with ctx.transaction() as conn:
        passes = await suspects.seen_again(conn, orphans)
        detected = sum(count == 2 for count in passes.values())
        if detected:
            await add_tally(conn, "orphaned_pods_detected", detected)
    return passes


async def _note(ctx: Pass, tally: str, gone: Observed | None = None) -> None:
    async with ctx.transaction() as conn:
        await add_tally(conn, tally)
        if gone is not None:
            await suspects.forget(conn, gone)
