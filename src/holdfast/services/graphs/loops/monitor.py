"""The loop `resource_monitor`: sample the memory of graph servers, give more to those that need it, and start those again that
ended with OOM_KILLED.

Samples are stored, so "above 80 % for 2 minutes" means what it says whichever scheduler runs the pass. Cooldown and steps come
from the events that this loop caused, so nothing else resets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg

from holdfast.errors import TermLost
from holdfast.jobs.tallies import add_tally
from holdfast.schedule.context import Pass
from holdfast.schedule.items import act_on_each, log_failed
from holdfast.schedule.registry import Result
from holdfast.services.graphs import measures
from holdfast.services.graphs.instances import admission, events, move, resize, rows, usage
from holdfast.services.graphs.instances.admission import LimitExceeded
from holdfast.services.graphs.instances.moving import Moved
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.instances.usage import Used
from holdfast.services.graphs.loops import pages
from holdfast.services.graphs.loops.growth import Growth, Level, decide, level_of
from holdfast.services.graphs.loops.listed import Listed
from holdfast.services.graphs.runtimes.interface import Observed, Unknown
from holdfast.services.graphs.setup import graphs_here
from holdfast.services.graphs.states import InstanceState
from holdfast.telemetry.log import log

Conn = psycopg.AsyncConnection[Any]
S = InstanceState
AUTOMATIC: Final = "automatic"  # events that this loop caused say so
REPORT_IS_NEW: Final = timedelta(seconds=60)  # graph servers report every few seconds
TALLY: Final[dict[Level, str]] = {
    "proactive": "resource_monitor_proactive_resizes",
    "urgent": "resource_monitor_urgent_resizes",
    "oom": "resource_monitor_oom_recoveries",
}


async def monitor(ctx: Pass) -> Result:
    """One pass: sample, then decide and act for each instance."""
    here = graphs_here()
    if not here.sizing:
        return Result(fields={"skipped_because": "HOLDFAST_GRAPH_SIZING is false"})
    with measures.measured("resource_monitor"):
        try:
            seen = Listed(await here.runtime.observe())
        except Unknown as error:
            log.warning("resource_monitor_skipped", error=str(error))
            return Result(0, 0, 1, fields={"skipped_because": str(error)})
        grown = failed = 0
        async for page in pages.pages(ctx, (S.RUNNING, S.FAILED)):
            failed += await _store(ctx, used_by(page, seen))
            for one, level in await _needy(ctx, page, seen):
                try:
                    grown += await _grow(ctx, one, level)
                except TermLost:
                    raise
                except Exception as error:  # the other instances are still handled
                    failed += 1
                    log.error("resource_monitor_instance_error", instance_id=one.id, error=str(error), exc_info=error)
                    async with ctx.transaction() as conn:
                        await add_tally(conn, "resource_monitor_failures")
        return Result(grown, failed, fields={"grown": grown})


# ---------------------------------------------------------------------------------------------------------------------
# Observe
# ---------------------------------------------------------------------------------------------------------------------


def used_by(page: Sequence[Moved], seen: Listed) -> list[Used]:
    """What the graph servers of a page use. Pure."""
    found = []
    for one in page:
        server = seen.of_start(one.id, one.instance.start_token)
        memory_bytes = None if server is None or one.instance.status is not S.RUNNING else memory_of(one, server)
        if server is not None and memory_bytes is not None:
            limit_mb = server.memory_limit_mb or one.instance.memory_mb
            found.append(Used(one.id, one.instance.start_token, memory_bytes, limit_mb))
    return found


def memory_of(one: Moved, server: Observed) -> int | None:
    """What the runtime says; in a cluster without a metrics server, what the graph server reported itself. Pure."""
    if server.memory_bytes is not None:
        return server.memory_bytes
    reported_at = one.instance.reported_at
    return one.instance.memory_bytes if reported_at is not None and one.now - reported_at <= REPORT_IS_NEW else None


async def _store(ctx: Pass, used: Sequence[Used]) -> int:
    """Store the samples of a page; one by one if that raises an error. Returns how many could not be stored."""
    try:
        async with ctx.transaction() as conn:
            await usage.store(conn, used)
    except psycopg.DatabaseError as error:
        log_failed(ctx, "page", error)
        return len((await act_on_each(ctx, used, _store_one)).failed)
    return 0


async def _store_one(conn: Conn, one: Used) -> None:
    await usage.store(conn, [one])


async def _needy(ctx: Pass, page: Sequence[Moved], seen: Listed) -> list[tuple[Moved, Level]]:
    """The instances of a page that need more memory. A resize makes earlier samples count no more."""
    async with ctx.connection() as conn:
        samples = await usage.samples_of(conn, [one.id for one in page])
    found: list[tuple[Moved, Level]] = []
    for one in page:
        server = seen.of_start(one.id, one.instance.start_token)
        if one.instance.error_code == "OOM_KILLED" or (one.instance.status is S.RUNNING and server is not None and server.oom):
            found.append((one, "oom"))
        elif one.instance.status is S.RUNNING and one.instance.wanted_memory_mb is None:
            level = level_of(samples.get(one.id, []))
            found += [(one, level)] if level is not None else []
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Act
# ---------------------------------------------------------------------------------------------------------------------


async def _grow(ctx: Pass, one: Moved, level: Level) -> bool:
    """One transaction: decide, reserve and enqueue. False: it gets no more memory now."""
    async with ctx.transaction() as conn:
        held = await rows.hold(conn, one.id, or_none=True)
        if held is None or (held.status, held.start_token) != (one.instance.status, one.instance.start_token):
            return False
        most = await admission.largest_instance_mb(conn)
        verdict = decide(level, held.memory_mb, await usage.history_of(conn, held.id), now=one.now, most_mb=most)
        if not isinstance(verdict, Growth):
            if verdict == "cooldown":
                log.debug("resource_monitor_resize_cooldown", instance_id=held.id, level=level)
            else:
                log.warning("resource_monitor_at_max_memory", instance_id=held.id, limit=verdict, level=level)
            return False
        try:
            async with conn.transaction():
                await _apply(conn, held, verdict)
                await add_tally(conn, TALLY[level])
        except LimitExceeded as error:
            log.warning("resource_monitor_at_max_memory", instance_id=held.id, limit=error.limit_type, level=level)
            return False
    return True


async def _apply(conn: Conn, held: Instance, growth: Growth) -> None:
    because = f"{AUTOMATIC}: {growth.level}"
    sizes = {"old_mb": held.memory_mb, "new_mb": growth.memory_mb}
    if growth.level != "oom":
        job_id = await resize.request(conn, held.id, memory_mb=growth.memory_mb, because=because)
        log.info("resource_monitor_triggering_resize", instance_id=held.id, level=growth.level, job_id=job_id, **sizes)
        return
    if held.status is S.RUNNING:
        await move.fail(conn, held, "OOM_KILLED", f"it used more memory than its limit of {held.memory_mb} MiB")
        held = await rows.get(conn, held.id)
    job_id = await move.start_again(
        conn, held, S.STARTING, memory_mb=growth.memory_mb, cpu=held.cpu, longest=graphs_here().longest_start
    )
    await events.add(conn, held.id, "oom_recovered", {**sizes, "because": because, "job_id": job_id})
    log.warning("resource_monitor_oom_recovered", instance_id=held.id, job_id=job_id, **sizes)
