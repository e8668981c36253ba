"""`graphs.start`: start the graph server of an instance and poll it until it has loaded. No worker lane is held meanwhile.

The graph server is recorded in the effects ledger before it is started. An attempt that follows a crash adopts it by instance
id and start token. If the job fails or is cancelled, the cleaner of the effect removes it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.jobs.effects import Effect
from holdfast.jobs.outcome import Backoff, Cancel, Done, Fail, Permanent, Retry, RetryPolicy, Snooze, Submitted
from holdfast.services.exports import offers
from holdfast.services.exports.offers import SnapshotHead, SnapshotState
from holdfast.services.graphs.instances import admission, move, rows, sizing
from holdfast.services.graphs.instances.admission import LimitExceeded
from holdfast.services.graphs.instances.jobs import SERVER_EFFECT, START_KIND
from holdfast.services.graphs.instances.plans import plan_of, spec_of
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.runtimes.interface import Observed, RuntimeFailed, Unknown
from holdfast.services.graphs.server_status import ServerStatus
from holdfast.services.graphs.setup import Graphs, graphs_here
from holdfast.services.graphs.states import MOVING, InstanceState
from holdfast.telemetry.log import log
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

FIRST_POLL, LONGEST_POLL = 0.2, 5.0  # seconds; the polls of a start become rarer
AGAIN: Final = timedelta(seconds=2)
RETRY: Final = RetryPolicy(Backoff(timedelta(seconds=1), timedelta(seconds=30)))
LOG_LINES: Final = 50


class Replaced(Permanent):
    """The instance was deleted or started again while this start went on."""


@job(START_KIND, retry=RETRY, public=False, locks=["graph:{instance_id}"], max_attempts=5)
async def start(ctx: Context, instance_id: int, start_token: str) -> Done | Submitted | Snooze | Retry | Fail | Cancel:
    """Start the graph server of an instance and wait until it has loaded."""
    here = graphs_here()
    async with ctx.connection() as conn:
        instance = await rows.find(conn, instance_id)
    if instance is None or instance.start_token != start_token or instance.status is InstanceState.STOPPING:
        return Cancel(f"graph instance {instance_id} was deleted or started again")
    try:
        return await (_poll(ctx, here, instance) if ctx.job.is_poll else _begin(ctx, here, instance))
    except RuntimeFailed as error:
        log.error("wrapper_pod_creation_failed", instance_id=instance_id, error=str(error), reason=error.reason)
        return Fail(f"{error.reason}: {error}")
    except Unknown as error:
        log.warning("wrapper_pod_creation_failed", instance_id=instance_id, error=str(error), reason="unknown")
        return Snooze(timedelta(seconds=error.retry_after or AGAIN.total_seconds()), str(error))


# ---------------------------------------------------------------------------------------------------------------------
# Begin
# ---------------------------------------------------------------------------------------------------------------------


async def _begin(ctx: Context, here: Graphs, instance: Instance) -> Submitted | Snooze | Fail | Cancel:
    async with ctx.connection() as conn:
        head = (await offers.read_heads(conn, [instance.snapshot_id])).get(instance.snapshot_id)
        wrong = why_not(head)
        if wrong is not None:
            return wrong
        assert head is not None
        if instance.status is InstanceState.WAITING_FOR_SNAPSHOT:
            instance = await _to_starting(conn, instance, head)
        if instance.status not in MOVING:
            return Cancel(f"graph instance {instance.id} is {instance.status}")
        plan = plan_of(instance, await offers.read_snapshot(conn, instance.snapshot_id))
    spec = spec_of(instance, plan, fence_token=ctx.fence_token, callback_url=here.callback_url)
    await _record(ctx, instance)
    crashpoint("graphs.before_ensure")
    await ctx.checkpoint()
    seen = await here.runtime.ensure(spec)
    crashpoint("graphs.after_ensure")
    async with ctx.connection() as conn:
        await move.note_server(conn, seen)
    return Submitted({"start_token": instance.start_token}, timedelta(seconds=FIRST_POLL))


def why_not(head: SnapshotHead | None) -> Fail | Snooze | None:
    """Why a snapshot cannot be loaded; None: it can. Pure."""
    if head is None or head.is_being_deleted:
        return Fail("DATA_LOAD_ERROR: Pending snapshot was deleted before it could complete")
    if head.state is SnapshotState.READY:
        return None
    if head.state is SnapshotState.FAILED:
        return Fail(f"DATA_LOAD_ERROR: Snapshot failed: {head.error}")
    if head.state is SnapshotState.CANCELLED:
        return Fail("DATA_LOAD_ERROR: Snapshot creation was cancelled")
    return Snooze(AGAIN, f"snapshot {head.id} is {head.state}")


async def _to_starting(conn: psycopg.AsyncConnection[Any], instance: Instance, head: SnapshotHead) -> Instance:
    """waiting_for_snapshot → starting, with the memory that the snapshot needs, if the limits allow so much."""
    memory_mb = instance.memory_mb
    if not instance.memory_is_fixed:
        most = await admission.largest_instance_mb(conn)
        memory_mb = sizing.memory_for(head.size_bytes or 0, least_mb=instance.memory_mb, most_mb=max(most, instance.memory_mb))
    log.info("transitioning_instance_to_starting", instance_id=instance.id, snapshot_id=head.id, memory_mb=memory_mb)
    async with conn.transaction():
        try:
            async with conn.transaction():
                await admission.admit(conn, instance.owner, memory_mb=memory_mb - instance.memory_mb)
        except LimitExceeded:
            memory_mb = instance.memory_mb  # the resource monitor gives it more as soon as it may have more
        if not await move.begin(conn, instance, memory_mb=memory_mb):
            return await rows.get(conn, instance.id)
    return replace(instance, status=InstanceState.STARTING, memory_mb=memory_mb)


async def _record(ctx: Context, instance: Instance) -> None:
    """Record the graph server before it is started; an earlier attempt of this start may have recorded it."""
    for effect in await ctx.left_behind():
        if is_of(effect, instance):
            await ctx.adopt(effect)
            return
    detail = {"instance_id": instance.id, "start_token": instance.start_token}
    async with ctx.effect(SERVER_EFFECT, detail=detail, adoptable=True):
        pass


def is_of(effect: Effect, instance: Instance) -> bool:
    """Whether this effect is the graph server of this start. Pure."""
    return effect.kind == SERVER_EFFECT and effect.detail["start_token"] == instance.start_token


# ---------------------------------------------------------------------------------------------------------------------
# Poll
# ---------------------------------------------------------------------------------------------------------------------


async def _poll(ctx: Context, here: Graphs, instance: Instance) -> Done | Submitted | Retry | Fail:
    seen = await here.runtime.look(instance.id)
    if seen is None or seen.start_token != instance.start_token:
        return Retry("the graph server is gone; it is started again")
    said = None if seen.address is None else await here.proxy.status(seen.address, instance.secret)
    if seen.phase == "failed":
        return await _failed(ctx, here, instance, seen)
    if seen.phase == "running":
        log.info("instance_running", instance_id=instance.id, address=seen.address, name=seen.name)
        return Done({"address": seen.address}, publish=lambda conn: _publish(conn, seen, progress_of(said)))
    async with ctx.connection() as conn:
        await move.note_server(conn, seen, progress_of(said))
    await ctx.progress(None, "the graph server loads")
    return Submitted(ctx.job.handle, timedelta(seconds=min(LONGEST_POLL, FIRST_POLL * 1.2**ctx.job.poll_count)))


def progress_of(said: ServerStatus | None) -> Any:
    """What a graph server says of its load, to store with the instance. Pure."""
    return None if said is None else {**(said.progress or {}), "phase": said.phase, "rows": said.rows}


async def _publish(conn: psycopg.AsyncConnection[Any], seen: Observed, progress: Any) -> None:
    if not await move.run(conn, seen, progress):
        raise Replaced(f"graph instance {seen.instance_id} was deleted or started again")


async def _failed(ctx: Context, here: Graphs, instance: Instance, seen: Observed) -> Fail:
    """The follower of this kind sets the instance to failed, in the transaction that ends this job."""
    tail = await here.runtime.logs(instance.id, LOG_LINES)
    async with ctx.connection() as conn:
        await conn.execute(KEEP_LOG, {"id": instance.id, "start_token": instance.start_token, "tail": tail.replace("\x00", "")})
    return Fail(f"{seen.reason or 'STARTUP_FAILED'}: {seen.message or 'the graph server ended'}")


KEEP_LOG = "UPDATE holdfast.graph_instances SET log_tail = %(tail)s WHERE id = %(id)s AND start_token = %(start_token)s"
