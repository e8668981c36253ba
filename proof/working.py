"""The workers of a schedule: claim, look, write and end, honestly or far too late. Called by: `schedules.py`.

A worker believes in what it was told until it is refused. Its ended and lost attempts stay around as ghosts: every
write under them has to be refused for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.errors import CancelRequested, ClaimLost, Draining, LockBusy, NotFound
from holdfast.jobs import effects
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import complete_plain, finish, resolve_unknown
from holdfast.jobs.model import LOCKS, SLOT, Claim, NewJob
from holdfast.jobs.outcome import Cancel, Done, End, Fail, Retry, Snooze, Submitted, decide, released, released_poll
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.progress import checkpoint, report
from holdfast.jobs.renew import renew
from proof.making import a_job
from proof.watching import look_after_end
from proof.witness import CANCEL_ASKED, LOST, OK, REFUSED, UNDONE
from proof.world import KINDS, LEASE, QUEUES, READ_LEASE, Rehearsed, Work, Worker, World

SHORT = timedelta(minutes=10)
PUBLISH = "INSERT INTO proof.published (job_id, attempt_id) VALUES (%s, %s)"


def _note_claims(world: World, worker: Worker, begun: int, claims: Sequence[Claim], how: str) -> None:
    for one in sorted(claims, key=lambda one: one.id):  # the order of RETURNING is the planner's affair
        world.witness.note("claim", begun, job=one.id, attempt=one.attempt_id, worker=worker.id, claim=one, how=how)
        world.witness.exercised[f"claim: {how}"] += 1
        worker.held.append(one)


def claim_some(world: World, worker: Worker) -> Work | None:
    """A batch."""
    kinds = list(KINDS) if world.chance(0.8) else [world.rng.choice(KINDS)]
    limit = world.rng.randint(1, 5)

    async def go() -> None:
        begun = world.witness.tick()
        claims = await claim(worker.conn, worker.id, kinds=kinds, queues=QUEUES, limit=limit)
        _note_claims(world, worker, begun, claims, "batch")
        world.witness.note("claims", begun, worker=worker.id, limit=limit, got=len(claims))

    return go()


def claim_this(world: World, worker: Worker) -> Work | None:
    """The in-process way: this very job."""
    job_id = world.some_job()
    if job_id is None:
        return None

    async def go() -> None:
        begun = world.witness.tick()
        one = await claim_by_id(worker.conn, worker.id, job_id)
        _note_claims(world, worker, begun, [one] if one else [], "by id")

    return go()


def claim_in_vain(world: World, worker: Worker) -> Work | None:
    """The connection dies before the answer comes: the jobs are claimed, and the living worker does not know."""

    async def go() -> None:
        begun = world.witness.tick()
        claims = await claim(worker.conn, worker.id, kinds=KINDS, queues=QUEUES, limit=2)
        held = worker.held
        _note_claims(world, worker, begun, claims, "batch")
        worker.held = held[: len(held) - len(claims)]
        worker.strays += claims
        world.witness.note("claim in vain", begun, worker=worker.id, jobs=[one.id for one in claims])

    return go()


def claim_polls(world: World, worker: Worker) -> Work | None:
    """Jobs whose external engine is due to be asked."""
    limit = world.rng.randint(1, 3)

    async def go() -> None:
        begun = world.witness.tick()
        claims = await claim_to_poll(worker.conn, worker.id, kinds=KINDS, queues=QUEUES, limit=limit)
        _note_claims(world, worker, begun, claims, "poll")

    return go()


def beat(world: World, worker: Worker) -> Work | None:
    """The heartbeat, now and then as part of a transaction that began a while ago."""
    in_old_transaction = world.chance(0.4)
    held = [*worker.held, *(worker.past if world.chance(0.5) else ())]

    async def go() -> None:
        begun = world.witness.tick()
        if not in_old_transaction:
            answer = await renew(worker.conn, worker.id, held, lease=LEASE, kinds=KINDS, queues=QUEUES)
            row = await (await worker.conn.execute(READ_LEASE, [worker.id])).fetchone()
            clock = None
        else:
            async with worker.conn.transaction():
                clock = (await (await worker.conn.execute("SELECT clock_timestamp()")).fetchone() or (None,))[0]
                answer = await renew(worker.conn, worker.id, held, lease=LEASE, kinds=KINDS, queues=QUEUES)
                row = await (await worker.conn.execute(READ_LEASE, [worker.id])).fetchone()
        world.witness.note(
            "beat",
            begun,
            worker=worker.id,
            held=[(one.id, one.attempt_id) for one in held],
            lost=answer.lost,
            known=answer.known,
            clock=clock,
            lease=LEASE,
            at=row[0] if row else None,
            until=row[1] if row else None,
        )
        for one in [one for one in worker.held if one.attempt_id in answer.lost]:
            worker.let_go(one)

    return go()


async def _write(world: World, worker: Worker, what: str, one: Claim, writing: Callable[[], Awaitable[Any]]) -> Any:
    """Any guarded write that does not end the attempt: let in or refused, it is written down."""
    begun = world.witness.tick()
    outcome, answer = OK, None
    try:
        answer = await writing()
    except ClaimLost:
        outcome = LOST
        worker.let_go(one)
    except CancelRequested:
        outcome = CANCEL_ASKED
    world.witness.note(what, begun, outcome, job=one.id, attempt=one.attempt_id, worker=worker.id)
    return answer


def _write_on(world: World, worker: Worker, one: Claim) -> Work:
    """One of the writes that leave the attempt running."""
    known = any(effect.job_id == one.id for effects in world.effects.values() for effect in effects)
    kinds, weights = ["progress", "checkpoint", "plan", "adopt", "resolve"], [3, 3, 5, 10 if known else 0, 2]
    if world.effects.get(one.attempt_id):
        kinds, weights = [*kinds, "confirm"], [*weights, 6]
    what = world.rng.choices(kinds, weights)[0]
    temporary, adoptable, works = world.chance(0.3), world.chance(0.5), world.chance(0.8)

    async def go() -> None:
        match what:
            case "progress":
                await _write(world, worker, what, one, lambda: report(worker.conn, one, progress=0.5, message="half"))
            case "checkpoint":
                await _write(world, worker, what, one, lambda: checkpoint(worker.conn, one))
            case "plan":
                await _plan(world, worker, one, temporary=temporary, adoptable=adoptable, works=works)
            case "confirm":
                await _confirm(world, worker, one)
            case "adopt":
                await _adopt(world, worker, one)
            case "resolve":
                await _resolve(world, worker, one)

    return go()


async def _plan(world: World, worker: Worker, one: Claim, *, temporary: bool, adoptable: bool, works: bool) -> None:
    """Write down what is about to be made, then make it, unless the process fails in between."""

    async def planning() -> effects.Effect:
        return await effects.plan(worker.conn, one, "thing", temporary=temporary, adoptable=adoptable)

    effect = await _write(world, worker, "plan", one, planning)
    if effect is not None:
        world.effects.setdefault(one.attempt_id, []).append(effect)
        if works:
            world.outside.add(effect.tag)
            if not adoptable:
                await _confirm(world, worker, one)


async def _confirm(world: World, worker: Worker, one: Claim) -> None:
    mine = world.effects.get(one.attempt_id)
    if mine:
        await _write(world, worker, "confirm", one, lambda: effects.confirm(worker.conn, one, mine[-1], {"at": "there"}))


async def _adopt(world: World, worker: Worker, one: Claim) -> None:
    """Take over what an earlier attempt made, if it was really made: the handler looks outside first."""
    left = await effects.left_behind(worker.conn, one)
    found = [effect for effect in left if effect.tag in world.outside]
    if found:
        effect = await _write(world, worker, "adopt", one, lambda: effects.adopt(worker.conn, one, found[0]))
        if effect is not None:
            world.effects.setdefault(one.attempt_id, []).append(effect)


async def _resolve(world: World, worker: Worker, one: Claim) -> None:
    """What a worker asks when the answer to its COMMIT was lost."""
    begun = world.witness.tick()
    try:
        answer = "ended" if await resolve_unknown(worker.conn, one) else "held"
    except ClaimLost:
        answer = "lost"
    world.witness.note("resolve", begun, job=one.id, attempt=one.attempt_id, worker=worker.id, answer=answer)
    world.witness.exercised[f"resolve: {answer}"] += 1


def write_on(world: World, worker: Worker) -> Work | None:
    """A write in the middle of an attempt."""
    one = world.some_held(worker)
    return None if one is None else _write_on(world, worker, one)


def write_as_ghost(world: World, worker: Worker) -> Work | None:
    """Every kind of write under an attempt that has ended: none may be let in."""
    if not worker.past:
        return None
    one = world.rng.choice(worker.past)
    match world.rng.randint(0, 3):
        case 0:
            return _end_plain(world, worker, [one], insist=False)
        case 1:
            return _chain(world, worker, one, a_job(world, plain=True), insist=False)
        case 2:
            return _end(world, worker, one, *_some_end(world, one))
    return _write_on(world, worker, one)


async def claim_everything(world: World, worker: Worker) -> None:
    """Whatever can be claimed, to run and to poll."""
    begun = world.witness.tick()
    claims = await claim(worker.conn, worker.id, kinds=KINDS, queues=QUEUES, limit=100)
    _note_claims(world, worker, begun, claims, "batch")
    begun = world.witness.tick()
    _note_claims(world, worker, begun, await claim_to_poll(worker.conn, worker.id, kinds=KINDS, queues=QUEUES), "poll")


# ---------------------------------------------------------------------------------------------------------------------
# Ends
# ---------------------------------------------------------------------------------------------------------------------


def end_plain(world: World, worker: Worker) -> Work | None:
    """Complete a batch in one statement; what is tied goes the long way."""
    first = world.some_held(worker)
    if first is None:
        return None
    others = [one for one in worker.held if one.id != first.id]  # its answer names jobs, so one job is in it once
    return _end_plain(world, worker, [first, *others[: world.rng.randint(0, 2)]], insist=world.chance(0.8))


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


def end_and_chain(world: World, worker: Worker) -> Work | None:
    """Complete and hold the next step at once; if that does not go, the long way."""
    one = world.some_held(worker)
    if one is None:
        return None
    return _chain(world, worker, one, a_job(world, plain=True), insist=world.chance(0.8))


def _chain(world: World, worker: Worker, one: Claim, child: NewJob, *, insist: bool) -> Work:
    async def go() -> None:
        begun = world.witness.tick()
        following = await complete_and_chain(worker.conn, one, None, child)
        outcome = UNDONE if following is None else OK
        _note_end(world, worker, begun, one, outcome, decide(one, None), via="chain", children=[child])
        if following is not None:
            world.learn(following.id)
            _note_claims(world, worker, begun, [following], "chain")
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
    if len(children) > 1 and world.chance(0.2):  # asked for twice under one name, made once
        children = [replace(child, step="same") for child in children]
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

    whole = End(**{name: getattr(ending, name) for name in End.__slots__} | {"publish": publish if publishing else None})

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
