"""The loop `instance_lifecycle`: delete instances whose TTL or inactivity timeout is over, by the path of every deletion.

`exports` has a loop for snapshots and mappings; a snapshot that an instance uses is kept until the instance is gone.
Favourites of mappings and snapshots that are gone are removed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from holdfast.api import audit
from holdfast.api.plane import Principal
from holdfast.errors import HoldfastError, TermLost
from holdfast.jobs.tallies import add_tally
from holdfast.schedule.context import Pass
from holdfast.schedule.items import act_on_each, log_failed
from holdfast.schedule.registry import Result
from holdfast.services.exports import offers
from holdfast.services.graphs import measures
from holdfast.services.graphs.durations import InvalidDuration, parse
from holdfast.services.graphs.instances import delete, favorites, moving
from holdfast.services.graphs.instances.moving import Moved
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.loops import pages
from holdfast.services.graphs.states import InstanceState
from holdfast.telemetry.log import log

S = InstanceState
SYSTEM: Final = Principal("loop:instance_lifecycle", "loop", None)
STATES: Final = tuple(state for state in S if state is not S.STOPPING)
IDLE: Final = (S.RUNNING, S.FAILED)  # in the other states there are no queries
BREAKER_LEAST: Final = 20
BREAKER_SHARE: Final = 0.5
TALLY: Final = {"ttl": "ttl_instances_terminated", "inactivity": "inactive_instances_terminated"}


@dataclass(frozen=True, slots=True)
class Expiry:
    """An instance has expired: why, and since when."""

    because: Literal["ttl", "inactivity"]
    since: datetime


def decide(one: Instance, now: datetime) -> Expiry | None:
    """Whether an instance has expired. Exactly at its end it has. Pure."""
    over: list[tuple[datetime, Literal["ttl", "inactivity"]]] = []
    if one.expires_at is not None and now >= one.expires_at:
        over.append((one.expires_at, "ttl"))
    if one.status in IDLE and one.inactive_at is not None and now >= one.inactive_at:
        over.append((one.inactive_at, "inactivity"))
    if not over:
        return None
    since, because = min(over)
    return Expiry(because, since)


class TooManyExpired(HoldfastError):
    """A pass would delete most instances. A wrong clock is more likely than a real expiry."""

    def __init__(self, expired: int, total: int) -> None:
        super().__init__(
            f"{expired} of {total} graph instances have expired, which is more than {BREAKER_SHARE:.0%}; nothing was deleted. "
            "Check the clock of the database server; if it is right, run the loop by hand: "
            "holdfast periodic run instance_lifecycle --reason …"
        )


async def enforce(ctx: Pass) -> Result:
    """Begin the deletion of every expired instance."""
    with measures.measured("instance_lifecycle"):
        expired, total = await _observe(ctx)
        if not ctx.is_manual and len(expired) >= BREAKER_LEAST and len(expired) > total * BREAKER_SHARE:
            raise TooManyExpired(len(expired), total)
        counts = {"ttl": 0, "inactivity": 0}
        failed = 0
        for instance_id in expired:
            try:
                deleted = await _delete(ctx, instance_id)
                if deleted is not None:
                    counts[deleted.because] += 1
            except TermLost:
                raise
            except Exception as error:  # the other instances are still deleted
                failed += 1
                log.error("instance_lifecycle_failed", instance_id=instance_id, error=str(error), exc_info=error)
                offers.count_termination_failure("instance")
        failed += await _remove_favorites(ctx)
        fields = {"ttl_terminated": counts["ttl"], "inactive_terminated": counts["inactivity"]}
        return Result(sum(counts.values()), failed, fields=fields)


async def _observe(ctx: Pass) -> tuple[list[int], int]:
    """The expired instances, and how many there are in all. All are read, in pages, so none hides a later one."""
    expired, total = [], 0
    async for page in pages.pages(ctx, STATES):
        total += len(page)
        for one in page:
            _log_invalid(one)
            if decide(one.instance, one.now) is not None:
                expired.append(one.id)
    return expired, total


def _log_invalid(one: Moved) -> None:
    for text in (one.instance.ttl, one.instance.inactivity_timeout):
        try:
            if text is not None:
                parse(text)
        except InvalidDuration as error:
            log.warning("instance_invalid_duration", instance_id=one.id, error=str(error))


async def _delete(ctx: Pass, instance_id: int) -> Expiry | None:
    """One transaction: decide again with the row locked, because somebody may have used or extended it meanwhile."""
    verdict: Expiry | None = None
    async with ctx.transaction() as conn:
        now = await moving.now(conn)

        def still(held: Instance) -> bool:
            nonlocal verdict
            verdict = None if held.status is S.STOPPING else decide(held, now)
            return verdict is not None

        job_id = await delete.begin_if(conn, instance_id, still, actor=SYSTEM.actor, reason="it has expired")
        if job_id is None or verdict is None:
            return None
        detail = {"because": verdict.because, "since": verdict.since.isoformat(), "job_id": job_id}
        await audit.write(conn, SYSTEM, "instances.change", f"instance/{instance_id}", reason="it has expired", detail=detail)
        await add_tally(conn, TALLY[verdict.because])
    lag = max(0.0, (now - verdict.since).total_seconds())
    measures.enforcement_lag.observe(lag)
    log.info("instance_expired", instance_id=instance_id, because=verdict.because, lag_seconds=lag, job_id=job_id)
    return verdict


async def _remove_favorites(ctx: Pass) -> int:
    """Remove the favourites of mappings and snapshots that are gone, one transaction per resource; how many failed.

    Instances have been deleted before this, so an error is counted and does not fail the pass.
    """
    after, failed = ("", 0), 0
    try:
        while True:
            async with ctx.connection() as conn:
                page = await favorites.resources_of_exports(conn, after)
                gone = await favorites.gone_among(conn, page)
            if not page:
                return failed
            failed += len((await act_on_each(ctx, gone, favorites.remove_all_of)).failed)
            after = page[-1]
    except TermLost:
        raise
    except Exception as error:
        log_failed(ctx, "favorites", error)
        return failed + 1
