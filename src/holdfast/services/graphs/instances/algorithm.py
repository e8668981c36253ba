"""`graphs.algorithm`: submit an algorithm to the graph server of an instance and poll it. No worker lane is held meanwhile.

The run is recorded in the effects ledger before it is submitted, and submitted with the tag of the effect. An attempt that
follows a crash adopts the effect and submits again with the same tag: the graph server answers with the run that it has, or
starts it. If the job fails or is cancelled, the cleaner of the effect stops the run.

The lock is taken when the job is enqueued and kept to its end, so a second job is refused at once. It is not the lock of the
jobs that move the instance: a deletion does not wait for an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from holdfast.crashpoints import crashpoint
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Lock
from holdfast.jobs.outcome import Backoff, Cancel, Done, Fail, Retry, RetryPolicy, Snooze, Submitted
from holdfast.services.graphs.instances import change, rows
from holdfast.services.graphs.instances.jobs import ALGORITHM_KIND, RUN_EFFECT
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.proxy import GraphUnreachable, Reply
from holdfast.services.graphs.setup import Graphs, graphs_here
from holdfast.services.graphs.states import InstanceState
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner, job

S = InstanceState
FIRST_POLL, LONGEST_POLL = 0.2, 2.0  # seconds; the polls of a run become rarer
AGAIN: Final = timedelta(seconds=2)
SOON: Final = timedelta(seconds=0.5)
RETRY: Final = RetryPolicy(Backoff(timedelta(seconds=1), timedelta(seconds=30)))
RESULT: Final = ("algorithm", "parameters", "property", "nodes", "edges", "rows", "columns", "seconds")

Ended = Done | Submitted | Snooze | Retry | Fail | Cancel


@job(
    ALGORITHM_KIND,
    retry=RETRY,
    public=False,
    locks=[Lock("graph-algorithm:{instance_id}", when_busy="reject")],
    max_attempts=5,
)
async def run_algorithm(ctx: Context, instance_id: int, algorithm: str, asked: dict[str, Any], holder: str) -> Ended:
    """Run an algorithm on a running graph instance and wait until it has ended."""
    here = graphs_here()
    async with ctx.connection() as conn:
        instance = await rows.find(conn, instance_id)
        if instance is not None and ctx.job.is_poll:
            await change.note_activity(conn, instance_id)  # it is in use, however long the run takes
    cannot = why_not(instance, None if not ctx.job.is_poll else ctx.job.handle["start_token"])
    if cannot is not None:
        return cannot
    assert instance is not None
    if ctx.job.is_poll:
        return await _poll(ctx, here, instance)
    return await _submit(ctx, here, instance, algorithm, {**asked, "holder": holder})


def why_not(instance: Instance | None, submitted_to: str | None) -> Snooze | Retry | Fail | Cancel | None:
    """Why an algorithm cannot run or go on; None: it can. `submitted_to` is the start that has the run. Pure."""
    if instance is None or instance.status is S.STOPPING:
        return Cancel("the graph instance was deleted")
    if instance.status is S.SUSPENDED:
        return Cancel(f"graph instance {instance.id} was suspended")
    if instance.status is S.FAILED:
        return Fail(f"graph instance {instance.id} failed: {instance.error_code}: {instance.error}")
    if submitted_to not in (None, instance.start_token):
        return Retry(f"graph instance {instance.id} was started again, and the run ended with its server; it runs again", SOON)
    if instance.status is not S.RUNNING:
        return Snooze(AGAIN, f"graph instance {instance.id} is {instance.status}")
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Submit
# ---------------------------------------------------------------------------------------------------------------------


async def _submit(ctx: Context, here: Graphs, instance: Instance, algorithm: str, asked: Mapping[str, Any]) -> Ended:
    tag = await _recorded(ctx, instance)
    crashpoint("graphs.before_run")
    await ctx.checkpoint()
    body = {**asked, "job_id": ctx.job.id, "tag": tag}
    try:
        reply = await _ask(here, instance, "POST", f"algorithms/{algorithm}", body=body)
    except GraphUnreachable as error:
        return Retry(str(error))
    crashpoint("graphs.after_run")
    if reply.body.get("code") == "RESOURCE_LOCKED":  # by the run of a job that was cancelled, which is being stopped
        return Snooze(SOON, str(reply.body.get("detail")))
    if reply.is_refusal:
        return Fail(refusal_of(reply))
    return Submitted({"start_token": instance.start_token, "tag": tag}, timedelta(seconds=FIRST_POLL))


async def _recorded(ctx: Context, instance: Instance) -> str:
    """Record the run before it is submitted, or adopt the record of an earlier attempt; its tag."""
    for effect in await ctx.left_behind():
        if effect.kind == RUN_EFFECT and effect.detail["start_token"] == instance.start_token:
            return (await ctx.adopt(effect)).tag
    detail = {"instance_id": instance.id, "start_token": instance.start_token}
    async with ctx.effect(RUN_EFFECT, detail=detail, adoptable=True) as planned:
        return planned.tag


def refusal_of(reply: Reply) -> str:
    """A refusal of a graph server, in one line. Pure."""
    return f"{reply.body.get('code', reply.status)}: {reply.body.get('detail', 'no reason was given')}"


async def _ask(here: Graphs, instance: Instance, method: str, path: str, **given: Any) -> Reply:
    return await here.proxy.ask(method, str(instance.address), path, secret=instance.secret, **given)


# ---------------------------------------------------------------------------------------------------------------------
# Poll
# ---------------------------------------------------------------------------------------------------------------------


async def _poll(ctx: Context, here: Graphs, instance: Instance) -> Ended:
    try:
        reply = await _ask(here, instance, "GET", f"algorithms/runs/{ctx.job.id}")
    except GraphUnreachable as error:
        return Snooze(AGAIN, str(error))  # until it answers, or `max_runtime` is over
    run = reply.body
    if reply.status == 404 or run.get("tag") != ctx.job.handle["tag"]:
        return Retry("the graph server does not know the run any more; it runs again", SOON)
    if reply.is_refusal:
        return Snooze(AGAIN, refusal_of(reply))
    match run["state"]:
        case "completed":
            return Done({name: run[name] for name in RESULT})
        case "failed":
            return Fail(f"{run['error_code']}: {run['error']}")
        case "cancelled":
            return Cancel(str(run["error"]))
    await ctx.progress(run.get("progress"), progress_message(run))  # a graph server of an older image reports none
    return Submitted(ctx.job.handle, timedelta(seconds=min(LONGEST_POLL, FIRST_POLL * 1.2**ctx.job.poll_count)))


def progress_message(run: Mapping[str, Any]) -> str:
    """What a run does now, for people. Pure."""
    size = f"{run['nodes']:,} nodes" + ("" if run["edges"] is None else f", {run['edges']:,} edges")
    done = f", {run['done']}" if run.get("done") else ""
    return f"{run['algorithm']}: {run['step']}{done} ({size})"


# ---------------------------------------------------------------------------------------------------------------------
# Cleaning up
# ---------------------------------------------------------------------------------------------------------------------


@cleaner(RUN_EFFECT)
async def stop_run(effect: Effect) -> bool:
    """Stop the run of a job that has ended. True once the graph server certainly does not run it, also not later."""
    here, given = graphs_here(), effect.detail
    server = await here.runtime.reach(given["instance_id"], given["start_token"])
    if server is None:
        return True
    path, query = f"algorithms/runs/{effect.job_id}", {"tag": effect.tag}
    reply = await here.proxy.ask("DELETE", server.address, path, secret=server.secret, query=query)
    return reply.status in (200, 404)
