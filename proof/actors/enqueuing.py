"""The enqueuer of a schedule: every way to enqueue jobs. Called by: `schedules/play.py`.

An act is a plain function that draws all its random numbers first and returns the work to do, or None if nothing
applies. So the seed alone decides what is tried, whatever runs concurrently.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from proof.checker.witness import OK, REFUSED, UNDONE
from proof.schedules.stepper import SteppedConnection
from proof.schedules.world import KINDS, QUEUES, Rehearsed, Work, World

from holdfast.errors import Draining, IdempotencyConflict, LockBusy, NotFound, UsageError
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import Enqueued, Lock, NewJob
from holdfast.jobs.pipelines import Pipeline

THEMES = {
    "plain": {},
    "locks": {"locks": 0.9},
    "rejects": {"locks": 0.8, "reject": 0.6},
    "slots": {"slot": 0.9},
    "unique": {"unique": 0.8},
    "pipelines": {"after": 0.5, "pipeline": 0.4},
    "engines": {"locks": 0.3, "slot": 0.2},
    "effects": {},
    "everything": {"locks": 0.4, "reject": 0.2, "slot": 0.25, "unique": 0.2, "after": 0.25, "pipeline": 0.15},
}
EXPECTED = (Draining, LockBusy, NotFound, IdempotencyConflict)


def a_job(world: World, *, plain: bool = False) -> NewJob:
    """A job as the theme of the schedule likes them."""
    rng, theme = world.rng, THEMES[world.theme]
    job = NewJob(
        rng.choice(KINDS),
        {"n": world.token()},
        queue=rng.choices(QUEUES, (5, 1))[0],
        priority=rng.choice((-1, 0, 0, 1)),
        max_attempts=rng.randint(1, 3),
        max_crashes=rng.randint(1, 3),
        run_after=timedelta(hours=1) if world.chance(0.1) else None,
        max_runtime=timedelta(hours=1) if world.chance(0.1) else None,
    )
    if plain:
        return job
    locks = _some_locks(world, theme.get("reject", 0.1)) if world.chance(theme.get("locks", 0.05)) else ()
    if world.chance(theme.get("slot", 0.05)):
        job = replace(job, slot_key=world.name(f"slot-{rng.randint(1, 2)}"))
    if world.chance(theme.get("unique", 0.05)):
        job = replace(job, unique_key=world.name("unique"), unique_while=rng.choice(("waiting", "live")), kind=KINDS[0])
    if world.jobs and world.chance(theme.get("after", 0.05)):
        parents = {world.some_job() for _ in range(rng.randint(1, 2))}
        job = replace(job, after=tuple(sorted(p for p in parents if p)), if_parent_fails=rng.choice(("cancel", "run")))
    return _with_locks(world, job, locks)


def _some_locks(world: World, reject: float) -> tuple[Lock, ...]:
    """One or two; locks with `reject` and such with `wait` come together in one job."""
    keys = world.rng.sample(("red", "green", "blue"), world.rng.choice((1, 1, 2)))
    ways: list[Literal["wait", "reject"]] = ["reject" if world.chance(reject) else "wait" for _ in keys]
    return tuple(Lock(key, world.rng.choice((1, 1, 2, None)), way) for key, way in zip(keys, ways, strict=True))


def _with_locks(world: World, job: NewJob, locks: tuple[Lock, ...]) -> NewJob:
    """With `reject` beside a slot or parents the job is refused before anything is written; its caller waits instead."""
    try:
        return replace(job, locks=locks)
    except UsageError:
        world.witness.exercised["enqueue: UsageError"] += 1
        return replace(job, locks=_waiting(locks))


def one_shares(jobs: list[NewJob]) -> list[NewJob]:
    """Only the first of several jobs in one transaction has keys that others may be at: two transactions that take two
    keys each, in orders of their own, can always wait for each other, and it is their callers who choose the order."""
    without = {"slot_key": None, "unique_key": None, "after": ()}
    return jobs[:1] + [replace(job, locks=_waiting(job.locks), **without) for job in jobs[1:]]


def _waiting(locks: tuple[Lock, ...]) -> tuple[Lock, ...]:
    return tuple(replace(lock, when_busy="wait") for lock in locks)


def note_made(world: World, begun: int, job: NewJob, made: Enqueued, data_at: datetime | None = None) -> None:
    """The enqueue was acknowledged."""
    facts = {"spec": job, "token": job.payload["n"], "created": made.created, "data_at": data_at}
    world.witness.note("enqueue", begun, job=made.id, **facts)
    world.witness.exercised["enqueue: found a twin" if not made.created else f"enqueue: {_flavour(job)}"] += 1
    world.learn(made.id)


def _flavour(job: NewJob) -> str:
    if job.locks:
        ways = {lock.when_busy for lock in job.locks}
        return "locks, both" if len(ways) > 1 else f"locks, {ways.pop()}"
    return "slot" if job.slot_key else "unique" if job.unique_key else "after" if job.after else "plain"


def note_unmade(world: World, begun: int, job: NewJob, outcome: str, error: Exception) -> None:
    """The enqueue was refused or undone: the job must not exist."""
    world.witness.note(
        "enqueue", begun, outcome, spec=job, token=job.payload["n"], error=type(error).__name__, message=str(error)
    )
    world.witness.exercised[f"enqueue: {type(error).__name__}"] += 1


def make_one(world: World, conn: SteppedConnection) -> Work | None:
    """One job, in a transaction of its own."""
    return _make(world, conn, a_job(world))


async def _make(world: World, conn: SteppedConnection, job: NewJob) -> None:
    begun = world.witness.tick()
    try:
        made = await enqueue(conn, job)
    except EXPECTED as refused:
        note_unmade(world, begun, job, REFUSED, refused)
    else:
        note_made(world, begun, job, made)


def make_many(world: World, conn: SteppedConnection) -> Work | None:
    """Several jobs at once, all or nothing; plain ones by COPY."""
    plain = world.chance(0.5)
    jobs = one_shares([a_job(world, plain=plain) for _ in range(world.rng.choice((2, 2, 3, 4)))])

    async def go() -> None:
        begun = world.witness.tick()
        try:
            made = await enqueue_many(conn, jobs)
        except EXPECTED as refused:
            for job in jobs:
                note_unmade(world, begun, job, REFUSED, refused)
        else:
            for job, one in zip(jobs, made, strict=True):
                note_made(world, begun, job, one)

    return go()


def make_with_key(world: World, conn: SteppedConnection) -> Work | None:
    """A client that asks again with the same idempotency key: the same job, or an error if it asks for something else."""
    key = world.name(f"key-{world.rng.randint(1, 2)}")
    asked = [event for event in world.witness.of("enqueue") if event.detail["spec"].idempotency_key == key]
    same = asked[0].detail["spec"] if asked and world.chance(0.8) else None
    return _make(world, conn, same or replace(a_job(world, plain=True), kind=KINDS[0], idempotency_key=key, run_after=None))


def make_and_undo(world: World, conn: SteppedConnection) -> Work | None:
    """The caller's transaction fails after the enqueue: the job never was."""
    job = a_job(world)

    async def go() -> None:
        begun = world.witness.tick()
        try:
            async with conn.transaction():
                await enqueue(conn, job)
                raise Rehearsed
        except Rehearsed as undone:
            note_unmade(world, begun, job, UNDONE, undone)
        except EXPECTED as refused:
            note_unmade(world, begun, job, REFUSED, refused)

    return go()


def make_with_data(world: World, conn: SteppedConnection) -> Work | None:
    """The enqueue is one statement of a longer transaction, whose data the job will want to see."""
    job = a_job(world)

    async def go() -> None:
        begun = world.witness.tick()
        try:
            async with conn.transaction():
                made = await enqueue(conn, job)
                written = await (await conn.execute("SELECT clock_timestamp()")).fetchone()
        except EXPECTED as refused:
            note_unmade(world, begun, job, REFUSED, refused)
        else:
            note_made(world, begun, job, made, written[0] if written else None)

    return go()


def make_pipeline(world: World, conn: SteppedConnection) -> Work | None:
    """A chain, a fan-out or a fan-in."""
    pipeline = Pipeline("proof")
    shape = world.rng.choice(("chain", "fan-in", "diamond"))
    jobs = [replace(a_job(world), after=(), idempotency_key=None, unique_key=None) for _ in range(4)]
    jobs = one_shares([replace(job, if_parent_fails=world.rng.choice(("cancel", "run"))) for job in jobs])
    first = pipeline.add(jobs[0])  # the only one that may have locks with `reject`: the others wait for it, or are refused
    second = pipeline.add(jobs[1], after=() if shape == "fan-in" else first)
    third = pipeline.add(jobs[2], after=second if shape == "chain" else () if shape == "fan-in" else first)
    if shape != "chain":
        pipeline.add(jobs[3], after=(first, second, third) if shape == "fan-in" else (second, third))
    jobs = jobs[:3] if shape == "chain" else jobs

    async def go() -> None:
        begun = world.witness.tick()
        try:
            made = await pipeline.enqueue(conn)
        except EXPECTED as refused:
            for job in jobs:
                note_unmade(world, begun, job, REFUSED, refused)
            return
        for job, one in zip(jobs, made, strict=True):
            note_made(world, begun, job, one)
        world.pipelines.append(pipeline.id)
        world.witness.note("pipeline", begun, OK, shape=shape, jobs=[one.id for one in made])

    return go()
