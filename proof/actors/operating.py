"""The operator, the sweeper and the faults of a schedule. Called by: `schedules/play.py`.

Time is changed by updating rows, never by waiting: the seed decides when a lease or a delay ends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from proof.checker.witness import OK, REFUSED
from proof.schedules.world import KINDS, LEASE, READ_LEASE, Rehearsed, Work, Worker, World

from holdfast.errors import IllegalMove, NotStale, Refused
from holdfast.jobs import control
from holdfast.jobs.cancel import abort, cancel
from holdfast.jobs.effects import Effect, clean
from holdfast.jobs.model import JobId
from holdfast.jobs.promote import promote_due, wake_forgotten
from holdfast.jobs.recover import recover
from holdfast.jobs.renew import renew, resign
from holdfast.jobs.rerun import rerun
from holdfast.jobs.rescue import rescue, rescue_worker

ACTOR = "operator"


def _note_taken(world: World, what: str, begun: int, jobs: list[JobId]) -> None:
    for job_id in jobs:
        world.witness.note(what, begun, job=job_id)


# ---------------------------------------------------------------------------------------------------------------------
# Operator
# ---------------------------------------------------------------------------------------------------------------------


def stop_a_job(world: World) -> Work | None:
    """Cancel, politely or not."""
    job_id, force = world.some_job(), world.chance(0.5)
    if job_id is None:
        return None

    async def go() -> None:
        begun = world.witness.tick()
        try:
            state = await cancel(world.stage.operator, job_id, actor=ACTOR, reason="stop", force=force)
        except IllegalMove:
            world.witness.note("cancel", begun, REFUSED, job=job_id)
            return
        world.witness.note("cancel" if state == "cancelled" else "ask to stop", begun, job=job_id, force=force)

    return go()


ORPHANS = """
    SELECT j.id FROM holdfast.jobs j WHERE j.id > %(base)s AND j.state = 'blocked' AND j.waiting_for = 'parents'
      AND NOT EXISTS (SELECT FROM holdfast.dependencies d JOIN holdfast.jobs p ON p.id = d.parent_id
                      WHERE d.job_id = j.id AND p.state NOT IN ('completed', 'failed', 'cancelled'))
      AND j.generation > 0
    ORDER BY j.id
"""


async def give_up_orphans(world: World) -> None:
    """Jobs that were rerun wait for parents that failed, until somebody reruns those too: here nobody does, and they are
    cancelled. A job that was never rerun must not be among them."""
    for (job_id,) in await (await world.stage.watcher.execute(ORPHANS, {"base": world.base})).fetchall():
        begun = world.witness.tick()
        try:
            await cancel(world.stage.operator, job_id, actor=ACTOR, reason="its parents failed")
        except IllegalMove:  # it went with another one of them
            continue
        world.witness.note("cancel", begun, job=job_id, force=False)


def run_again(world: World) -> Work | None:
    """Rerun what has ended badly."""
    job_id = world.some_job()
    if job_id is None:
        return None

    async def go() -> None:
        begun = world.witness.tick()
        outcome = OK
        try:
            await rerun(world.stage.operator, job_id, actor=ACTOR)
        except Refused:  # IllegalMove among them
            outcome = REFUSED
        world.witness.note("rerun", begun, outcome, job=job_id)

    return go()


def take_from_silent(world: World) -> Work | None:
    """Recover: only from a holder whose lease is over."""
    job_id, grant = world.some_job(), world.rng.randint(1, 2)
    if job_id is None:
        return None

    async def go() -> None:
        begun = world.witness.tick()
        outcome = OK
        try:
            await recover(world.stage.operator, job_id, actor=ACTOR, grant=grant)
        except NotStale:
            outcome = REFUSED
        world.witness.note("recover", begun, outcome, job=job_id)

    return go()


def stop_a_pipeline(world: World) -> Work | None:
    """Abort."""
    if not world.pipelines:
        return None
    pipeline_id = world.rng.choice(world.pipelines)

    async def go() -> None:
        begun = world.witness.tick()
        touched = await abort(world.stage.operator, pipeline_id, actor=ACTOR)
        world.witness.note("abort", begun, pipeline=pipeline_id, touched=touched)

    return go()


def say_about_a_kind(world: World) -> Work | None:
    """Pause, drain or resume."""
    kind = world.rng.choice((*KINDS, control.EVERYTHING))
    what = world.rng.choice(("pause", "drain", "resume", "resume"))

    async def go() -> None:
        begun = world.witness.tick()
        conn = world.stage.operator
        if what == "pause":
            await control.pause(conn, kind, actor=ACTOR)
        elif what == "drain":
            await control.drain(conn, kind, actor=ACTOR)
        else:
            await control.resume(conn, kind)
        world.witness.note(what, begun, kind=kind)

    return go()


# ---------------------------------------------------------------------------------------------------------------------
# Sweeper
# ---------------------------------------------------------------------------------------------------------------------

SILENT_YET_HOLDING = """
    SELECT j.id FROM holdfast.jobs j JOIN holdfast.workers w ON w.id = j.worker_id WHERE w.lease_until < %(clock)s
"""
CLOCK = "SELECT clock_timestamp()"
EXPIRE = """
    UPDATE holdfast.workers SET lease_until = clock_timestamp() WHERE id = %(worker)s RETURNING clock_timestamp()
"""


async def expire(world: World, worker_id: str) -> None:
    """The lease of a worker is over as of now."""
    begun = world.witness.tick()
    row = await (await world.stage.watcher.execute(EXPIRE, {"worker": worker_id})).fetchone()
    world.witness.note("expire", begun, worker=worker_id, at=row[0] if row else None)


EXPIRE_ALL = "UPDATE holdfast.workers SET lease_until = clock_timestamp() RETURNING id::text, clock_timestamp()"


async def expire_all(world: World) -> None:
    """Everybody has gone silent."""
    begun = world.witness.tick()
    for worker_id, at in await (await world.stage.watcher.execute(EXPIRE_ALL)).fetchall():
        world.witness.note("expire", begun, worker=worker_id, at=at)


def sweep(world: World) -> Work:
    """Rescue whatever is held by the silent. Alone, it must find all of it, also in a transaction that is older than
    the end of the lease."""
    late = world.rng.choice(world.workers) if world.alone and world.chance(0.15) else None

    async def go() -> None:
        conn = world.stage.sweeper
        begun = world.witness.tick()
        if late is None:
            clock = (await (await conn.execute(CLOCK)).fetchone() or (None,))[0]
            taken = await rescue(conn)
        else:
            async with conn.transaction():
                await conn.execute(CLOCK)
                await expire(world, late.id)
                clock = (await (await conn.execute(CLOCK)).fetchone() or (None,))[0]
                taken = await rescue(conn)
        _note_taken(world, "rescue", begun, taken)
        left: list[Any] = []
        if world.alone:
            left = [row[0] for row in await (await conn.execute(SILENT_YET_HOLDING, {"clock": clock})).fetchall()]
        world.witness.note("sweep", begun, left=left, taken=taken)

    return go()


def bury(world: World, worker: Worker) -> Work | None:
    """The parent of a process sees it die: its jobs are taken at once, and a new incarnation starts. It may know what ran."""
    running = list(worker.held) if world.chance(0.7) else None

    async def go() -> None:
        begun = world.witness.tick()
        tokens = None if running is None else [one.fence_token for one in running]
        taken = await rescue_worker(world.stage.sweeper, worker.id, cause="signal", error="killed", begun=tokens)
        _note_taken(world, "rescue", begun, taken)
        attempts = None if running is None else [one.attempt_id for one in running]
        world.witness.note("bury", begun, worker=worker.id, running=attempts)
        await world.incarnate(worker)

    return go()


def crash(world: World, worker: Worker) -> Work | None:
    """The process forgets everything and starts again under a new id; the old lease is left to run out."""

    async def go() -> None:
        await expire(world, worker.id)
        world.witness.note("crash", world.witness.tick(), worker=worker.id, held=len(worker.held))
        await world.incarnate(worker)

    return go()


def stall(world: World, worker: Worker) -> Work | None:
    """The process is paused beyond its lease and remembers everything: the ghost of every fencing execution."""

    async def go() -> None:
        await expire(world, worker.id)
        world.witness.note("stall", world.witness.tick(), worker=worker.id, held=len(worker.held))

    return go()


def step_down(world: World, worker: Worker) -> Work | None:
    """A worker ends its own lease, whatever it still holds."""

    async def go() -> None:
        begun = world.witness.tick()
        await resign(worker.conn, worker.id)
        clock = (await (await worker.conn.execute(CLOCK)).fetchone() or (None,))[0]
        world.witness.note("expire", begun, worker=worker.id, at=clock)
        world.witness.exercised["resign"] += 1

    return go()


NO_TIME = timedelta(0)


def find_strays(world: World, worker: Worker) -> Work | None:
    """A worker learns of claims whose answer never reached it, and gives them back. No time is granted for the answer,
    so that the schedule need not wait for it; the lease is renewed right afterwards."""
    if not worker.strays:
        return None
    strays, worker.strays = worker.strays, []

    async def go() -> None:
        begun = world.witness.tick()
        held = [*worker.held, *worker.lanes.waiting]
        answer = await renew(worker.conn, worker.id, held, lease=NO_TIME)
        taken = await rescue_worker(worker.conn, worker.id, cause="claim_unanswered", error="no answer", attempts=answer.strays)
        await renew(worker.conn, worker.id, held, lease=LEASE)
        row = await (await worker.conn.execute(READ_LEASE, [worker.id])).fetchone()
        _note_taken(world, "rescue", begun, taken)
        at, until, xid = row or (None, None, None)
        facts = {"held": [], "lost": [], "clock": None, "lease": LEASE, "at": at, "until": until, "xid": xid}
        world.witness.note("beat", begun, worker=worker.id, **facts)
        missed = [(one.id, one.attempt_id) for one in strays if one.attempt_id not in answer.strays]
        world.witness.note("find strays", begun, worker=worker.id, missed=missed)

    return go()


def promote(world: World) -> Work:
    """Delayed jobs whose time has come."""

    async def go() -> None:
        begun = world.witness.tick()
        world.witness.note("promote", begun, jobs=await promote_due(world.stage.sweeper))

    return go()


XID = "SELECT pg_current_xact_id()::text"


def wake(world: World) -> Work:
    """The sweep behind locks and slots. Its transaction is noted: every other wake-up belongs to somebody's end."""

    async def go() -> None:
        begun = world.witness.tick()
        conn = world.stage.sweeper
        async with conn.transaction():
            row = await (await conn.execute(XID)).fetchone()
            await wake_forgotten(conn)
        world.witness.note("wake", begun, xid=row[0] if row else None)

    return go()


def clean_up(world: World) -> Work | None:
    """Cleaners, which fail now and then."""
    mood = world.rng.choices(("works", "not yet", "raises"), (6, 1, 1))[0]

    async def cleaner(effect: Effect) -> bool:
        if mood == "raises":
            raise Rehearsed
        if mood == "works":
            world.outside.discard(effect.tag)
        return mood == "works"

    async def go() -> None:
        begun = world.witness.tick()
        gone = await clean(world.stage.sweeper, {"thing": cleaner})
        world.witness.note("clean", begun, gone=gone)

    return go()


async def clean_all(world: World) -> None:
    """A cleaner that always works."""

    async def cleaner(effect: Effect) -> bool:
        world.outside.discard(effect.tag)
        return True

    await clean(world.stage.sweeper, {"thing": cleaner}, limit=1000)


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------

PASS_TIME = """
    WITH delayed AS (UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE id > %(base)s AND state = 'pending'
                     AND run_after IS NOT NULL),
         polled AS (UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE id > %(base)s AND state = 'submitted'),
         lapsed AS (UPDATE holdfast.lock_wants SET woken_at = clock_timestamp() - interval '1 hour'
                    WHERE job_id > %(base)s AND woken_at IS NOT NULL)
    UPDATE holdfast.effects SET clean_after = clock_timestamp() WHERE state = 'unwanted'
"""
OVERRUN = """
    UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - interval '1 hour'
    WHERE id > %(base)s AND deadline_at IS NOT NULL RETURNING id, attempt_id::text
"""


def pass_time(world: World) -> Work:
    """Everything that waits for its time is due; most often somebody notices at once."""
    noticed = world.chance(0.7)

    async def go() -> None:
        begun = world.witness.tick()
        await world.stage.watcher.execute(PASS_TIME, {"base": world.base})
        world.witness.note("pass time", begun)
        world.clock.now += 2.0
        if noticed:
            await promote(world)

    return go()


def overrun(world: World) -> Work | None:
    """Attempts with a longest time are far beyond it."""

    async def go() -> None:
        begun = world.witness.tick()
        rows = await (await world.stage.watcher.execute(OVERRUN, {"base": world.base})).fetchall()
        for job_id, attempt in rows:
            world.witness.note("overrun", begun, job=job_id, attempt=attempt)

    return go()
