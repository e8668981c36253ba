"""Resize a running instance: request it, and `graphs.resize`, the job that does it.

A request reserves the memory (`wanted_memory_mb` is counted by the limits). The row gets the new values only when the runtime
has them; if the job fails, its follower takes the request back and records why.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.errors import IllegalMove, UsageError
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId
from holdfast.jobs.outcome import Backoff, Cancel, Done, Fail, Permanent, RetryPolicy, Snooze
from holdfast.services.exports import offers
from holdfast.services.graphs.instances import admission, events, move, rows
from holdfast.services.graphs.instances.jobs import RESIZE_KIND, resize_job
from holdfast.services.graphs.instances.plans import plan_of, spec_of
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.runtimes.interface import RuntimeFailed, Unknown
from holdfast.services.graphs.setup import graphs_here
from holdfast.services.graphs.states import InstanceState
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]
RETRY = RetryPolicy(Backoff(timedelta(seconds=1), timedelta(seconds=30)))

# ---------------------------------------------------------------------------------------------------------------------
# Request
# ---------------------------------------------------------------------------------------------------------------------

WANT = """
    UPDATE holdfast.graph_instances SET wanted_memory_mb = %(memory_mb)s, wanted_cpu = %(cpu)s, job_id = %(job_id)s
    WHERE id = %(id)s AND state = 'running' AND start_token = %(start_token)s
"""


async def request(
    conn: Conn, instance_id: int, *, memory_mb: int | None = None, cpu: float | None = None, because: str = "requested"
) -> JobId:
    """Reserve new limits for a running instance; the job that applies them. Memory only grows."""
    async with conn.transaction():
        instance = await rows.hold(conn, instance_id)
        if instance.status is not InstanceState.RUNNING:
            raise IllegalMove(f"graph instance {instance_id} is {instance.status}; only a running one can be resized")
        if instance.wanted_memory_mb is not None or instance.wanted_cpu is not None:
            raise IllegalMove(f"graph instance {instance_id} is being resized by job {instance.job_id}; wait for its end")
        await _admit_memory(conn, instance, memory_mb)
        made = await enqueue(conn, resize_job(instance_id, instance.start_token, because=because))
        parameters = {
            "id": instance_id,
            "start_token": instance.start_token,
            "memory_mb": memory_mb or instance.memory_mb,
            "cpu": cpu or instance.cpu,
            "job_id": made.id,
        }
        await conn.execute(WANT, parameters)
    return made.id


async def _admit_memory(conn: Conn, instance: Instance, memory_mb: int | None) -> None:
    if memory_mb is None:
        return
    if memory_mb < instance.memory_mb:
        raise IllegalMove(
            f"graph instance {instance.id} has {instance.memory_mb / 1024:g} GiB; memory can only be increased while it runs"
        )
    most = await admission.largest_instance_mb(conn)
    if memory_mb > most:
        raise UsageError(f"an instance may have at most {most // 1024} GiB of memory, not {memory_mb / 1024:g}; ask for less")
    await admission.admit(conn, instance.owner, memory_mb=memory_mb - instance.memory_mb)


# ---------------------------------------------------------------------------------------------------------------------
# Apply
# ---------------------------------------------------------------------------------------------------------------------


class Moved(Permanent):
    """The instance was deleted, suspended or started again during the resize."""


@job(RESIZE_KIND, retry=RETRY, public=False, locks=["graph:{instance_id}"], max_attempts=5)
async def resize(ctx: Context, instance_id: int, start_token: str, because: str) -> Done | Fail | Cancel | Snooze:
    """Give a running instance the memory and CPU that its row wants; by a restart if the runtime cannot do it in place."""
    here = graphs_here()
    async with ctx.connection() as conn:
        instance = await rows.find(conn, instance_id)
        if instance is None or instance.start_token != start_token or instance.wanted_memory_mb is None:
            return Cancel(f"graph instance {instance_id} does not want to be resized any more")
        plan = plan_of(instance, await offers.read_snapshot(conn, instance.snapshot_id))
    spec = spec_of(instance, plan, fence_token=ctx.fence_token, callback_url=here.callback_url)
    memory_mb, cpu = instance.wanted_memory_mb, instance.wanted_cpu or instance.cpu
    await ctx.checkpoint()
    try:
        in_place = await here.runtime.resize(spec, memory_mb=memory_mb, cpu=cpu)
    except RuntimeFailed as error:
        return Fail(str(error))
    except Unknown as error:
        return Snooze(timedelta(seconds=error.retry_after or 2.0), str(error))
    crashpoint("graphs.after_resize")

    async def publish(conn: Conn) -> None:
        await _apply(conn, instance, because=because, in_place=in_place, longest=here.longest_start)

    return Done({"memory_mb": memory_mb, "cpu": cpu, "in_place": in_place}, publish=publish)


APPLY = """
    UPDATE holdfast.graph_instances
    SET memory_mb = wanted_memory_mb, cpu = wanted_cpu, wanted_memory_mb = NULL, wanted_cpu = NULL
    WHERE id = %(id)s AND state = 'running' AND start_token = %(start_token)s AND wanted_memory_mb = %(memory_mb)s
"""


async def _apply(conn: Conn, instance: Instance, *, because: str, in_place: bool, longest: timedelta) -> None:
    """The runtime has the new limits, or gets them with a restart. Commits with the end of the job."""
    memory_mb, cpu = instance.wanted_memory_mb, instance.wanted_cpu or instance.cpu
    parameters = {"id": instance.id, "start_token": instance.start_token, "memory_mb": memory_mb}
    if not (await conn.execute(APPLY, parameters)).rowcount:
        raise Moved(f"graph instance {instance.id} was deleted, suspended or started again")
    details = {"because": because, "in_place": in_place}
    if memory_mb != instance.memory_mb:
        old_new = {"old_mb": instance.memory_mb, "new_mb": memory_mb}
        await events.add(conn, instance.id, "memory_upgraded", {**old_new, **details})
    if cpu != instance.cpu:
        await events.add(conn, instance.id, "cpu_updated", {"old": instance.cpu, "new": cpu, **details})
    if not in_place:
        held = await rows.get(conn, instance.id)  # the statement above has locked the row
        job_id = await move.start_again(
            conn, held, InstanceState.STARTING, memory_mb=held.memory_mb, cpu=held.cpu, longest=longest
        )
        await events.add(conn, instance.id, "restarted", {"because": "resize", "job_id": job_id})
