"""The actors that end attempts, in every way a handler can. Called by: `schedules/play.py`, `schedules/quiesce.py`.

With children, with a `publish` function that may fail, in a batch, in a chain; and each of these again under an attempt
that ended long ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from proof.actors.enqueuing import a_job
from proof.actors.observing import look_after_end
from proof.actors.working import note_claims, write_something
from proof.checker.witness import LOST, OK, REFUSED, UNDONE
from proof.schedules.world import Rehearsed, Work, Worker, World

from holdfast.errors import ClaimLost, Draining, LockBusy, NotFound
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import LOCKS, SLOT, Claim, NewJob
from holdfast.jobs.outcome import Cancel, Done, End, Fail, Retry, Snooze, Submitted, decide, released, released_poll
from holdfast.jobs.pipelines import complete_and_chain

SHORT = timedelta(minutes=10)
PUBLISH = "INSERT INTO proof.published (job_id, attempt_id) VALUES (%s, %s)"


def end_plain(world: World, worker: Worker) -> Work | None:
    """Complete a batch in one statement; what is tied goes the long way."""
    first = world.some_held(worker)
    if first is None:
        return None
    others = {one.id: one for one in worker.held if one.id != first.id}  # its answer names jobs, so one job is in it once
    some = [first, *list(others.values())[: world.rng.randint(0, 2)]]
    return _end_plain(world, worker, some, insist=world.chance(0.8))


def _end_plain(world: World, worker: Worker, claims: list[Claim], *, insist: bool) -> Work:
    async def go() -> None:
        begun = world.witness.tick()
        done = await complete_plain(worker.conn, claims, [None] * len(claims))
        for one in claims:
            outcome = OK if one.id in done else UNDONE
            _note_end(world, worker, begun, one, outcome, decide(one, None), via="plain")
        for one in claims:
            if insist and one.id not in done:
                await _end(world, worker, one, decide(one, None), [])

    return go()


async def complete(world: World, worker: Worker, claims: list[Claim]) -> None:
    """Complete them all, in one statement where that goes."""
    await _end_plain(world, worker, claims, insist=True)


async def complete_one(world: World, worker: Worker, one: Claim) -> None:
    """Complete this one with all that hangs on it."""
    await _end(world, worker, one, decide(one, None), [])
    if one in worker.held:  # its `publish` failed on purpose; the next one will not
        await _end(world, worker, one, decide(one, None), [])


async def give_back(world: World, worker: Worker, one: Claim) -> None:
    """Return a job that never began."""
    await _end(world, worker, one, released("its worker was busy with others"), [])


def end_and_chain(world: World, worker: Worker) -> Work | None:
    """Complete and hold the next step at once; if that does not go, the long way."""
    one = world.some_held(worker)
    if one is None:
        return None
    return _chain(world, worker, one, a_next_step(world), insist=world.chance(0.8))


def a_next_step(world: World) -> NewJob:
    """A job that can be held at once."""
    return replace(a_job(world, plain=True), run_after=None)


def _chain(world: World, worker: Worker, one: Claim, child: NewJob, *, insist: bool) -> Work:
    async def go() -> None:
        begun = world.witness.tick()
        following = await complete_and_chain(worker.conn, one, None, child)
        outcome = UNDONE if following is None else OK
        _note_end(world, worker, begun, one, outcome, decide(one, None), via="chain", children=[child])
        if following is not None:
            world.learn(following.id)
            note_claims(world, worker, begun, [following], "chain")
            worker.held.append(following)
        elif insist:
            await _end(world, worker, one, decide(one, Done(then=[child])), [child])

    return go()


def end(world: World, worker: Worker) -> Work | None:
    """End an attempt in one of the many ways that a handler has."""
    one = world.some_held(worker)
    return None if one is None else _end(world, worker, one, *_some_end(world, one))


def _some_end(world: World, one: Claim) -> tuple[End, list[NewJob]]:
    weights = (4, 4, 3, 4, 2, 1, 1, 5, 1)  # those that come back more often: the second attempt is the interesting one
    if world.theme == "engines":
        weights = (2, 10, 1, 2, 1, 1, 1, 3, 1)
    kinds = ("done", "submitted", "snooze", "retry", "fail", "cancel", "error", "release", "timeout")
    children = [a_job(world, plain=world.chance(0.6)) for _ in range(world.rng.randint(0, 2))]
    if len(children) > 1 and world.chance(0.2):  # under names of their own
        children = [replace(child, step=f"step-{number}") for number, child in enumerate(children)]
    join = a_job(world, plain=True) if len(children) > 1 and world.chance(0.3) else None
    delay = SHORT if world.chance(0.3) else timedelta(0)
    match world.rng.choices(kinds, weights)[0]:
        case "done":
            return decide(one, Done({"ok": True}, then=children, join=join)), [*children, join] if join else children
        case "submitted":
            return decide(one, Submitted({"query": one.attempt_no}, poll_after=SHORT if world.chance(0.3) else None)), []
        case "snooze":
            return decide(one, Snooze(delay, "later")), []
        case "retry":
            return decide(one, Retry("again", delay), chance=world.rng.random), []
        case "fail":
            return decide(one, Fail("never")), []
        case "cancel":
            return decide(one, Cancel("no need")), []
        case "release":
            return (released_poll(one, "shutdown") if one.is_poll else released("shutdown")), []
        case "timeout":
            return decide(one, TimeoutError("slow"), chance=world.rng.random), []
    return decide(one, RuntimeError("boom"), chance=world.rng.random), []


def _end(world: World, worker: Worker, one: Claim, ending: End, children: list[NewJob]) -> Work:
    publishing = ending.state == "completed" and world.chance(0.4)
    failing = publishing and world.chance(0.2)

    async def publish(conn: Any) -> None:
        await conn.execute(PUBLISH, [one.id, one.attempt_id])
        if failing:
            raise Rehearsed

    way = "prepare" if publishing and world.chance(0.5) else "publish"
    whole = End(**{name: getattr(ending, name) for name in End.__slots__} | {way: publish if publishing else None})

    async def go() -> None:
        begun = world.witness.tick()
        outcome = OK
        try:
            await finish(worker.conn, one, whole)
        except ClaimLost:
            outcome = LOST
        except Rehearsed:
            outcome = UNDONE
        except (Draining, LockBusy, NotFound):  # a child could not be made, so nothing was
            outcome = REFUSED
        _note_end(world, worker, begun, one, outcome, ending, via="finish", children=children, published=publishing)
        if outcome == OK and world.alone and one.ties & (LOCKS | SLOT):
            await look_after_end(world, one)

    return go()


def _note_end(
    world: World,
    worker: Worker,
    begun: int,
    one: Claim,
    outcome: str,
    ending: End,
    *,
    via: str,
    children: Sequence[NewJob] = (),
    published: bool = False,
) -> None:
    world.witness.note(
        "end",
        begun,
        outcome,
        job=one.id,
        attempt=one.attempt_id,
        worker=worker.id,
        move=str(ending.move),
        state=str(ending.state),
        via=via,
        children=list(children),
        published=published,
    )
    world.witness.exercised[f"end: {ending.move}" if outcome == OK else f"end by {via}: {outcome}"] += 1
    if outcome in (OK, LOST):
        worker.let_go(one)


def write_as_ghost(world: World, worker: Worker) -> Work | None:
    """Every kind of write under an attempt that has ended: none may be let in, least of all when the job runs again."""
    if not worker.past:
        return None
    running = {one.id for other in world.workers for one in other.held}
    replaced = [one for one in worker.past if one.id in running]
    one = world.rng.choice(replaced if replaced and world.chance(0.8) else worker.past)
    match world.rng.randint(0, 6):
        case 0:
            return _end_plain(world, worker, [one], insist=False)
        case 1:
            return _chain(world, worker, one, a_next_step(world), insist=False)
        case 2:
            return _end(world, worker, one, *_some_end(world, one))
    return write_something(world, worker, one)
