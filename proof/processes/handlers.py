"""The jobs of the process schedules. Each handler writes what it does to a witness outside the database.

The witness is a file to which every process appends whole lines; the engine is a folder in which a query is a file
named after its tag. Neither depends on Holdfast, so both can contradict it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Backoff, Context, Done, Lock, RetryPolicy, Submitted, SyncContext, cleaner, crashpoint, job
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Claim, NewJob

QUERY = "proof.query"
SOON = RetryPolicy(Backoff(first=timedelta(seconds=0.05), longest=timedelta(seconds=0.2)))
PATIENT = {"max_crashes": 50, "max_attempts": 20, "retry": SOON}  # a schedule may kill as often as it likes

FOLDER = "PROOF_FOLDER"

_witness = -1
_engine = Path()


def remember(folder: Path) -> None:
    """Where this process tells what it does."""
    global _witness, _engine
    _witness = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    _engine = folder / "engine"
    _engine.mkdir(exist_ok=True)
    os.environ[FOLDER] = str(folder)  # for processes that run one of these jobs alone


def tell(what: str, claim: Claim, **more: Any) -> None:
    """One line, in one write: lines of several processes never mix, and a SIGKILL leaves whole ones."""
    said = {
        "what": what,
        "job": claim.id,
        "kind": claim.kind,
        "attempt": claim.attempt_id,
        "number": claim.attempt_no,
        "fence": claim.fence_token,
        "worker": claim.worker_id,
        "pid": os.getpid(),
        "at": time.monotonic(),
        "wall": time.time(),
        **more,
    }
    os.write(_witness, (json.dumps(said) + "\n").encode())


def allowed(ctx: Context) -> dict[str, float]:
    """When it was last told that it may, and until when by the worker's own clock: as it was told, not as it is by now."""
    return {"checked": ctx.allowed_at, "until": ctx.allowed_until}


async def _act(ctx: Context, key: str | None = None) -> None:
    """A side effect as it should be made: asked for first, and with the fence of the attempt on it."""
    await ctx.checkpoint()
    tell("effect", ctx.job, **allowed(ctx), key=key)


@job("proof.quick", **PATIENT)
async def quick(ctx: Context, n: int) -> str:
    """A plain completion: it goes in a batch."""
    tell("start", ctx.job)
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("proof.steps", **PATIENT)
async def steps(ctx: Context, n: int, steps: int, pause: float) -> str:
    """Work with side effects, long enough to be killed in the middle."""
    tell("start", ctx.job)
    for step in range(steps):
        await _act(ctx)
        await asyncio.sleep(pause)
        await ctx.progress(step / steps, "working")
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("proof.blocking", **PATIENT)
def blocking(ctx: SyncContext, n: int, pause: float) -> str:
    """In a thread."""
    tell("start", ctx.job)
    time.sleep(pause)
    ctx.checkpoint()
    tell("effect", ctx.job, **allowed(ctx.context), key=None)
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("proof.chain", **PATIENT)
async def chain(ctx: Context, n: int, length: int) -> str:
    """A step that is followed by the next: plain ones are taken along in the same commit."""
    tell("start", ctx.job)
    if length > 1:
        ctx.chain(chain.new(n=n, length=length - 1))
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("proof.fan", **PATIENT)
async def fan(ctx: Context, n: int, width: int) -> Done:
    """Fan-out and fan-in: the children and what waits for them are made with the end of their parent."""
    tell("start", ctx.job)
    children = [quick.using(step=f"part-{number}").new(n=n) for number in range(width)]
    tell("finish", ctx.job)
    return Done(ctx.attempt_id, then=children, join=quick.using(step="join").new(n=n))


@job("proof.locked", locks=lambda key, **_: [Lock(key)], **PATIENT)
async def locked(ctx: Context, n: int, key: str, pause: float) -> str:
    """Alone under its key."""
    tell("start", ctx.job, key=key)
    await _act(ctx, key)
    await asyncio.sleep(pause)
    await _act(ctx, key)
    tell("finish", ctx.job, key=key)
    return ctx.attempt_id


@job("proof.slot", slot=lambda key, **_: key, **PATIENT)
async def slot(ctx: Context, n: int, key: str, pause: float) -> str:
    """One current run of its slot."""
    tell("start", ctx.job)
    await asyncio.sleep(pause)
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("proof.publish", **PATIENT)
async def publish(ctx: Context, n: int) -> Done:
    """A row that commits with the end of the job, or not at all."""
    tell("start", ctx.job)
    claim = ctx.job

    async def write(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO proof.published (job_id, attempt_id) VALUES (%s, %s)", [claim.id, claim.attempt_id])

    tell("finish", ctx.job)
    return Done(ctx.attempt_id, publish=write)


@job("proof.flaky", **PATIENT)
async def flaky(ctx: Context, n: int, errors: int) -> str:
    """Fails a few times, then works."""
    tell("start", ctx.job)
    if ctx.job.errors < errors:
        raise RuntimeError("as planned")
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("proof.engine", **PATIENT)
async def engine(ctx: Context, n: int, seconds: float) -> Done | Submitted:
    """Hands its work to an engine, and asks until it is done. Never submits again what may have been submitted."""
    tell("start", ctx.job, poll=ctx.job.is_poll)
    if ctx.job.is_poll:
        query = _engine / str(ctx.job.handle)
        if time.time() - query.stat().st_mtime < seconds:
            return Submitted(ctx.job.handle, timedelta(seconds=0.05))
        tell("finish", ctx.job)
        return Done(ctx.attempt_id)
    for left in await ctx.left_behind():
        if (_engine / left.tag).exists():
            await ctx.adopt(left, left.tag)
            return Submitted(left.tag, timedelta(seconds=0.05))
    async with ctx.effect(QUERY, adoptable=True) as planned:
        may = allowed(ctx)
        (_engine / planned.tag).touch(exist_ok=False)
        tell("submit", ctx.job, tag=planned.tag, **may)
        crashpoint("submit.after_send")
        planned.made(planned.tag)
    return Submitted(planned.tag, timedelta(seconds=0.05))


@cleaner(QUERY)
async def cancel_query(effect: Effect) -> bool:
    """Gone, or it never was."""
    (_engine / effect.tag).unlink(missing_ok=True)
    return True


if FOLDER in os.environ:
    remember(Path(os.environ[FOLDER]))

KINDS = [quick, steps, blocking, chain, fan, locked, slot, publish, flaky, engine]


def some_job(rng: Any, n: int, kind: str | None = None) -> NewJob:
    """A job of this kind, or of any, as the seed will have it."""
    pause = rng.choice((0.0, 0.01, 0.05, 0.15))
    makers = {
        "quick": lambda: quick.new(n=n),
        "steps": lambda: steps.new(n=n, steps=rng.randint(1, 4), pause=pause),
        "blocking": lambda: blocking.new(n=n, pause=pause),
        "chain": lambda: chain.new(n=n, length=rng.randint(2, 4)),
        "fan": lambda: fan.new(n=n, width=rng.randint(1, 3)),
        "locked": lambda: locked.new(n=n, key=f"lock-{rng.randint(1, 2)}", pause=pause),
        "slot": lambda: slot.new(n=n, key=f"slot-{rng.randint(1, 2)}", pause=pause),
        "publish": lambda: publish.new(n=n),
        "flaky": lambda: flaky.new(n=n, errors=rng.randint(0, 2)),
        "engine": lambda: engine.new(n=n, seconds=pause),
    }
    return makers[kind or rng.choice(list(makers))]()
