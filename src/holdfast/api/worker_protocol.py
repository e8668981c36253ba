"""The worker protocol over HTTP: the kernel's verbs for workers without a database. Called by: `worker/transports/remote.py`.

A worker sends the attempt id of its claim as `If-Match: "<attempt_id>"`; everything else about the claim is read from the row
of that attempt. A replaced attempt gets 412 `stale-attempt` and has changed nothing. Only the database's clock is used.
Requests are stateless, so any replica can answer them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import psycopg
from fastapi import BackgroundTasks, Depends, Request
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.api.fenced import Actor, Attempt, Pool, holding, said_as, workers_only
from holdfast.api.lazy_routes import LazyRouter
from holdfast.api.paging import JobNumber
from holdfast.api.problems import Problem
from holdfast.api.reserved import refuse_effect, refuse_handle, refuse_reserved
from holdfast.api.routes import EVERY_GUARDED_ROUTE, EVERY_ROUTE, EVERY_WRITE, refusals
from holdfast.api.worker_bodies import (
    MOST_CLAIMS,
    Beating,
    Chain,
    Claiming,
    Completions,
    Handle,
    Lines,
    Looking,
    Plan,
    Progress,
    Publication,
    Registration,
    Waiting,
)
from holdfast.errors import ClaimLost, UsageError
from holdfast.jobs import begin, effects, logs, progress, promote
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import complete_plain, finish, resolve_unknown
from holdfast.jobs.held import is_known, require_own, require_own_attempt, require_worker
from holdfast.jobs.kinds import opened_kind, publish
from holdfast.jobs.model import AttemptId, Claim, JobId, Json, WorkerId
from holdfast.jobs.parents import read_parents
from holdfast.jobs.payload import to_json
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.renew import Beat, WorkerInfo, can_claim, register, renew, resign
from holdfast.jobs.rescue import rescue, rescue_worker
from holdfast.protocol.wire import SaidAttempt, SaidEnd, of_beat, of_claim, of_effect, of_parent, seconds
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.kept import tidy
from holdfast.telemetry.log import log

FIRST_POLL, LONGEST_POLL = 0.05, 1.0  # seconds between two polls for claimable jobs

REFUSES = (
    "not-found",
    "not-own-worker",
    "stale-attempt",
    "attempt-required",
    "cancel-requested",
    "lock-busy",
    "refused",
    "draining",
    "reserved-kind",
)
router = LazyRouter(
    prefix="/api/worker",
    tags=["worker protocol"],
    dependencies=[Depends(workers_only)],
    responses=refusals([*EVERY_ROUTE, *EVERY_GUARDED_ROUTE, *EVERY_WRITE, *REFUSES]),
)

# ---------------------------------------------------------------------------------------------------------------------
# Registration and heartbeats
# ---------------------------------------------------------------------------------------------------------------------


@router.put("/{worker_id}", status_code=204)
async def register_worker(
    worker_id: UUID, said: Annotated[Registration, said_as(Registration)], pool: Pool, actor: Actor
) -> None:
    """Register an incarnation before its first claim, and again if a heartbeat says that it is unknown.

    From then on only tokens with this name may act for it: others get 403 `not-own-worker`.
    """
    about = said.model_dump(exclude={"lease"})
    worker = WorkerInfo(WorkerId(str(worker_id)), runner="remote", owner=actor, **about)
    async with pool.connection() as conn:
        await register(conn, worker, lease=timedelta(seconds=said.lease))


@router.put("/{worker_id}/kinds", status_code=204)
async def publish_kinds(worker_id: UUID, said: Annotated[Publication, said_as(Publication)], pool: Pool, actor: Actor) -> None:
    """Publish the declarations of this worker's kinds before it registers: requests to enqueue are validated with them.

    A reserved kind has no schedule: its periodic jobs would be enqueued without the route of its service. A kind that is
    published with `public: false` stays so: only a worker that has a database connection opens it to requests.
    """
    for one in said.kinds:
        if one.periodic is not None:
            refuse_reserved(one.kind)
    declared = {one.kind: one.model_dump() for one in said.kinds}
    async with pool.connection() as conn:
        await is_known(conn, WorkerId(str(worker_id)), owner=actor)
        if (private := await opened_kind(conn, list(declared.values()))) is not None:
            raise Problem(
                "reserved-kind",
                f"{private} is published with public=False and would be opened to requests; declare it with public=False, or "
                "publish it by a worker that has a database connection",
            )
        await publish(conn, list(declared.values()), worker=said.name)


@router.post("/{worker_id}/beat")
async def beat(
    worker_id: UUID, said: Annotated[Beating, said_as(Beating)], pool: Pool, actor: Actor, afterwards: BackgroundTasks
) -> dict[str, Json]:
    """Renew the lease and return what there is to do. The sweeps of a worker with a database run here, after the response."""
    me = WorkerId(str(worker_id))
    mine = [_shown(one, me) for one in said.held]
    lease = timedelta(seconds=said.lease)
    async with pool.connection() as conn:
        await is_known(conn, me, owner=actor)
        found = await renew(conn, me, mine, lease=lease, kinds=said.kinds, queues=said.queues)
        if said.running:
            running = [(JobId(one.id), AttemptId(str(one.attempt_id)), one.seconds) for one in said.running]
            await begin.note_begun(conn, me, running)
    if found.strays or found.can_rescue or found.can_wake:
        afterwards.add_task(_sweep, pool, me, said.name, found)
    return of_beat(found) | {"strays": [], "can_rescue": False, "can_wake": False, "can_clean": False}


def _shown(attempt: SaidAttempt, me: WorkerId) -> Claim:
    """A claim that has only the attempt id, for statements that need nothing else."""
    nothing: dict[str, Any] = dict.fromkeys(Claim._fields)
    return Claim(**nothing | {"id": JobId(attempt.id), "attempt_id": AttemptId(str(attempt.attempt_id)), "worker_id": me})


async def _sweep(pool: AsyncConnectionPool[Any], me: WorkerId, name: str, found: Beat) -> None:
    """Every sweep is a guarded write, so several processes may run it; one that fails is retried with the next heartbeat."""
    try:
        async with pool.connection() as conn:
            if found.strays:
                error = "the answer to its claim was lost"
                await rescue_worker(
                    conn, me, cause="claim_unanswered", error=error, actor=name, attempts=list(found.strays), begun=[]
                )
            if found.can_rescue:
                await rescue(conn, actor=name)
            if found.can_wake:
                await promote.wake_forgotten(conn)
    except (psycopg.Error, PoolTimeout) as error:
        log.warning("sweep_failed", error=error_line(error), worker_id=me)


@router.delete("/{worker_id}", status_code=204)
async def resign_worker(worker_id: UUID, pool: Pool, actor: Actor) -> None:
    """End the lease now, so that jobs which the worker still holds can be rescued at once."""
    me = WorkerId(str(worker_id))
    async with pool.connection() as conn:
        await require_worker(conn, me, owner=actor)
        await resign(conn, me)


# ---------------------------------------------------------------------------------------------------------------------
# Claiming
# ---------------------------------------------------------------------------------------------------------------------


@router.post("/{worker_id}/claims")
async def claim_batch(
    worker_id: UUID, said: Annotated[Claiming, said_as(Claiming)], pool: Pool, actor: Actor
) -> dict[str, Json]:
    """Claim up to `limit` jobs, and never more than 20 at once."""
    me = WorkerId(str(worker_id))
    async with pool.connection() as conn:
        await require_worker(conn, me, owner=actor)
        claims = await claim(conn, me, **_asked(said))
    return {"claims": [of_claim(one) for one in claims]}


def _asked(said: Claiming) -> dict[str, Any]:
    limit = min(said.limit, MOST_CLAIMS)
    return {"kinds": said.kinds, "queues": said.queues, "limit": limit, "begins": said.begins}


@router.post("/{worker_id}/claims/{job_id}")
async def claim_one(
    worker_id: UUID, job_id: JobNumber, said: Annotated[Looking, said_as(Looking)], pool: Pool, actor: Actor
) -> dict[str, Json]:
    """Claim this job; null if it cannot be claimed."""
    me = WorkerId(str(worker_id))
    async with pool.connection() as conn:
        await require_worker(conn, me, owner=actor)
        one = await claim_by_id(conn, me, JobId(job_id), kinds=said.kinds)
    return {"claim": None if one is None else of_claim(one)}


@router.post("/{worker_id}/polls")
async def claim_polls(
    worker_id: UUID, said: Annotated[Claiming, said_as(Claiming)], pool: Pool, actor: Actor
) -> dict[str, Json]:
    """Claim jobs whose external engine is due to be polled."""
    me = WorkerId(str(worker_id))
    async with pool.connection() as conn:
        await require_worker(conn, me, owner=actor)
        claims = await claim_to_poll(conn, me, **_asked(said))
    return {"claims": [of_claim(one) for one in claims]}


@router.post("/{worker_id}/wait")
async def wait(worker_id: UUID, said: Annotated[Waiting, said_as(Waiting)], pool: Pool, request: Request) -> dict[str, Json]:
    """Respond when there is a job to claim, or after `seconds`. Nothing is claimed, so a lost response does no harm."""
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + said.seconds, FIRST_POLL
    while True:
        async with pool.connection() as conn:
            ready = await can_claim(conn, kinds=said.kinds, queues=said.queues)
        left = until - loop.time()
        if ready or left <= 0 or await request.is_disconnected():
            return {"can_claim": ready}
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 2, LONGEST_POLL)


@router.post("/promote")
async def promote_due(pool: Pool) -> dict[str, Json]:
    """Make delayed and periodic jobs that are due, by the database's clock, claimable."""
    async with pool.connection() as conn:
        promoted = await promote.promote_all_due(conn)
    return {"promoted": promoted.jobs, "next_due": seconds(promoted.next_due)}


# ---------------------------------------------------------------------------------------------------------------------
# Ending
# ---------------------------------------------------------------------------------------------------------------------


def _as_text(result: Json) -> str | None:
    return None if result is None else to_json(result, what="result")


@router.post("/{worker_id}/completions")
async def complete_batch(
    worker_id: UUID, said: Annotated[Completions, said_as(Completions)], pool: Pool, actor: Actor
) -> dict[str, Json]:
    """Complete plain jobs in one statement. Returns the completed ids; the others are lost or tied: see finish."""
    claims = [_shown(one, WorkerId(str(worker_id))) for one in said.completions]
    results = [_as_text(one.result) for one in said.completions]
    async with pool.connection() as conn:
        await require_own(conn, claims, owner=actor)
        return {"completed": sorted(await complete_plain(conn, claims, results))}


@router.post("/jobs/{job_id}/chain")
async def chain(
    request: Request, job_id: JobNumber, attempt: Attempt, said: Annotated[Chain, said_as(Chain)], pool: Pool
) -> dict[str, Json]:
    """Complete a plain job and claim its one plain child at once; null: it is tied or paused, and nothing was written."""
    child = said.child.job()
    refuse_reserved(child.kind)
    if not child.is_plain or child.run_after is not None:
        raise UsageError("only a plain child can be claimed at once; finish with it in `then` instead")
    async with holding(pool, job_id, attempt, "chain") as (conn, mine):
        following = await complete_and_chain(conn, mine, _as_text(said.result), child)
    return {"claim": None if following is None else of_claim(following)}


@router.post("/jobs/{job_id}/finish", status_code=204)
async def finish_attempt(
    request: Request, job_id: JobNumber, attempt: Attempt, said: Annotated[SaidEnd, said_as(SaidEnd)], pool: Pool
) -> None:
    """End the attempt in any way, with its children, in one transaction: complete, submit, retry, snooze, fail, release."""
    for child in [*said.then, *([said.join] if said.join else [])]:
        refuse_reserved(child.kind)
    async with holding(pool, job_id, attempt, str(said.move)) as (conn, mine):
        await finish(conn, mine, said.end())


@router.get("/jobs/{job_id}/end")
async def was_written(job_id: JobNumber, attempt: Attempt, pool: Pool) -> dict[str, Json]:
    """After a lost response: whether the end of this attempt was written. 412 if another process ended it."""
    shown = SaidAttempt(id=job_id, attempt_id=UUID(attempt.id))
    async with pool.connection() as conn:
        await require_own_attempt(conn, JobId(job_id), attempt.id, owner=attempt.actor)
        return {"written": await resolve_unknown(conn, _shown(shown, WorkerId("")))}


# ---------------------------------------------------------------------------------------------------------------------
# While it runs
# ---------------------------------------------------------------------------------------------------------------------


@router.post("/jobs/{job_id}/begin", status_code=204)
async def begin_attempt(job_id: JobNumber, attempt: Attempt, pool: Pool) -> None:
    """Write that the handler of the attempt starts now, for a claim with `confirm_start`."""
    async with holding(pool, job_id, attempt, "begin") as (conn, mine):
        await begin.begin(conn, mine)


@router.post("/jobs/{job_id}/progress", status_code=204)
async def report(job_id: JobNumber, attempt: Attempt, said: Annotated[Progress, said_as(Progress)], pool: Pool) -> None:
    """Report progress; 409 `cancel-requested` if the job has a cancel request."""
    async with holding(pool, job_id, attempt, "progress") as (conn, mine):
        await progress.report(conn, mine, progress=said.progress, message=said.message)


@router.post("/jobs/{job_id}/checkpoint", status_code=204)
async def checkpoint(job_id: JobNumber, attempt: Attempt, pool: Pool) -> None:
    """Check before a side effect that the attempt still holds its job and has no cancel request."""
    async with holding(pool, job_id, attempt, "checkpoint") as (conn, mine):
        await progress.checkpoint(conn, mine)


@router.post("/jobs/{job_id}/logs", status_code=204)
async def keep_lines(job_id: JobNumber, attempt: Attempt, said: Annotated[Lines, said_as(Lines)], pool: Pool) -> None:
    """Store log lines of the handler: the last 1,000 of the attempt. A repeated line number is stored once."""
    async with holding(pool, job_id, attempt, "logs") as (conn, mine):
        lines = [
            logs.Numbered(mine, one.number, tidy(one.said_at.isoformat(), one.level, one.message, one.fields))
            for one in said.lines
        ]
        if not await logs.write(conn, lines):
            raise ClaimLost(mine.id, attempt.id, "logs")


@router.get("/jobs/{job_id}/parents")
async def parents(job_id: JobNumber, attempt: Attempt, pool: Pool) -> dict[str, Json]:
    """The jobs that this one waited for, in order, with their results: at most 8 MiB."""
    async with holding(pool, job_id, attempt, "parents") as (conn, mine):
        return {"parents": [of_parent(one) for one in await read_parents(conn, mine)]}


@router.get("/jobs/{job_id}/effects")
async def left_behind(job_id: JobNumber, attempt: Attempt, pool: Pool) -> dict[str, Json]:
    """Effects of earlier attempts of the job."""
    async with holding(pool, job_id, attempt, "effect") as (conn, mine):
        return {"effects": [of_effect(one) for one in await effects.left_behind(conn, mine)]}


@router.post("/jobs/{job_id}/effects")
async def plan(job_id: JobNumber, attempt: Attempt, said: Annotated[Plan, said_as(Plan)], pool: Pool) -> dict[str, Json]:
    """Record an effect before it is made. One that a cleaner of a service cleans must be about the job of the attempt."""
    async with holding(pool, job_id, attempt, "effect") as (conn, mine):
        refuse_effect(mine, said.kind, said.tag, said.detail or {})
        return of_effect(await effects.plan(conn, mine, **said.model_dump()))


@router.put("/jobs/{job_id}/effects/{effect_id}")
async def confirm(
    job_id: JobNumber, effect_id: JobNumber, attempt: Attempt, said: Annotated[Handle, said_as(Handle)], pool: Pool
) -> dict[str, Json]:
    """Record that the effect was made, with its handle."""
    async with holding(pool, job_id, attempt, "effect") as (conn, mine), conn.transaction():
        confirmed = await effects.confirm(conn, mine, _effect(effect_id, mine), said.handle)
        refuse_handle(confirmed)
        return of_effect(confirmed)


@router.post("/jobs/{job_id}/effects/{effect_id}/adopt")
async def adopt(
    job_id: JobNumber, effect_id: JobNumber, attempt: Attempt, said: Annotated[Handle, said_as(Handle)], pool: Pool
) -> dict[str, Json]:
    """Take over an effect of an earlier attempt."""
    async with holding(pool, job_id, attempt, "effect") as (conn, mine), conn.transaction():
        adopted = await effects.adopt(conn, mine, _effect(effect_id, mine), said.handle)
        refuse_handle(adopted)
        return of_effect(adopted)


def _effect(effect_id: JobNumber, claim: Claim) -> effects.Effect:
    """An effect by its id; the statements need nothing else."""
    return effects.Effect(effect_id, claim.id, claim.attempt_id, claim.fence_token, "", "", None, None, "")
