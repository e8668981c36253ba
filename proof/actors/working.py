"""The workers of a schedule: claim, renew, write and finish, in time or too late. Called by: `schedules/play.py`.

A worker assumes that it holds a job until a write is refused. Its ended and lost attempts stay in the schedule: every
later write under them must be refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from proof.actors import observing
from proof.checker.witness import CANCEL_ASKED, LOST, OK
from proof.schedules.world import KINDS, LEASE, QUEUES, READ_LEASE, Work, Worker, World

from holdfast.errors import CancelRequested, ClaimLost
from holdfast.jobs import effects
from holdfast.jobs.begin import begin, note_begun
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import resolve_unknown
from holdfast.jobs.model import Claim
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.progress import checkpoint, report
from holdfast.jobs.renew import renew


def note_claims(
    world: World, worker: Worker, begun: int, claims: Sequence[Claim], how: str, *, begins: bool = True, for_lanes: bool = False
) -> None:
    for one in sorted(claims, key=lambda one: one.id):  # the order of RETURNING is the planner's affair
        facts = {"worker": worker.id, "claim": one, "how": how, "begins": begins, "for_lanes": for_lanes}
        world.witness.note("claim", begun, job=one.id, attempt=one.attempt_id, **facts)
        world.witness.exercised[f"claim: {how}"] += 1


def claim_some(world: World, worker: Worker) -> Work | None:
    """A batch."""
    kinds = list(KINDS) if world.chance(0.8) else [world.rng.choice(KINDS)]
    limit, begins = world.rng.randint(1, 5), world.chance(0.5)

    async def go() -> None:
        worker.held += await claim_batch(world, worker, kinds, limit, begins=begins)

    return go()


async def claim_batch(
    world: World, worker: Worker, kinds: Sequence[str], limit: int, *, begins: bool = True, facts: dict[str, Any] | None = None
) -> list[Claim]:
    """Claim, and note what was there to be claimed: only when nothing else is under way, because else it may change."""
    claimable = await observing.claimable(world) if world.alone else None
    begun = world.witness.tick()
    claims = await claim(worker.conn, worker.id, kinds=kinds, queues=QUEUES, limit=limit, begins=begins)
    note_claims(world, worker, begun, claims, "batch", begins=begins, for_lanes=facts is not None)
    asked = {"kinds": sorted(kinds), "limit": limit, "claimable": claimable}
    taken = [one.id for one in claims]
    left = [row for row in claimable or () if row[1] in kinds][limit:]
    world.witness.exercised["claim: not all"] += bool(left)
    world.witness.note("claims", begun, worker=worker.id, got=len(claims), taken=taken, **asked, **facts or {})
    return claims


def claim_this(world: World, worker: Worker) -> Work | None:
    """The in-process way: this very job."""
    job_id = world.some_job()
    if job_id is None:
        return None

    async def go() -> None:
        begun = world.witness.tick()
        one = await claim_by_id(worker.conn, worker.id, job_id)
        note_claims(world, worker, begun, [one] if one else [], "by id")
        worker.held += [one] if one else []

    return go()


def claim_in_vain(world: World, worker: Worker) -> Work | None:
    """The connection dies before the answer comes: the jobs are claimed, and the living worker does not know."""

    async def go() -> None:
        begun = world.witness.tick()
        claims = await claim_batch(world, worker, KINDS, 2)
        worker.strays += claims
        world.witness.note("claim in vain", begun, worker=worker.id, jobs=[one.id for one in claims])

    return go()


def claim_polls(world: World, worker: Worker) -> Work | None:
    """Jobs whose external engine is due to be asked."""
    limit = world.rng.randint(1, 3)

    async def go() -> None:
        begun = world.witness.tick()
        claims = await claim_to_poll(worker.conn, worker.id, kinds=KINDS, queues=QUEUES, limit=limit)
        note_claims(world, worker, begun, claims, "poll")
        worker.held += claims

    return go()


def beat(world: World, worker: Worker) -> Work | None:
    """The heartbeat, now and then as part of a transaction that began a while ago."""
    in_old_transaction = world.chance(0.4)
    held = [*worker.held, *worker.lanes.waiting, *(worker.past if world.chance(0.5) else ())]
    return renew_lease(world, worker, held, in_old_transaction=in_old_transaction)


async def renew_lease(world: World, worker: Worker, held: list[Claim], *, in_old_transaction: bool = False) -> None:
    """Renew the lease of a worker that believes to hold these."""
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
        xid=row[2] if row else None,
    )
    for one in [one for one in worker.held if one.attempt_id in answer.lost]:
        worker.let_go(one)


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


def write_something(world: World, worker: Worker, one: Claim) -> Work:
    """One of the writes that leave the attempt running."""
    known = any(effect.job_id == one.id for effects in world.effects.values() for effect in effects)
    kinds, weights = ["begin", "progress", "checkpoint", "plan", "adopt", "resolve"], [4, 3, 3, 5, 10 if known else 0, 3]
    if world.effects.get(one.attempt_id):
        kinds, weights = [*kinds, "confirm"], [*weights, 6]
    what = world.rng.choices(kinds, weights)[0]
    temporary, adoptable, works = world.chance(0.3), world.chance(0.5), world.chance(0.8)
    by_beat = world.chance(0.5)

    async def go() -> None:
        match what:
            case "begin" if by_beat:
                await _note_begun(world, worker, one)
            case "begin":
                await _write(world, worker, what, one, lambda: begin(worker.conn, one))
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


async def _note_begun(world: World, worker: Worker, one: Claim) -> None:
    """As the heartbeat does it. It says nothing about an attempt that was replaced, and must not begin its successor."""
    begun = world.witness.tick()
    await note_begun(worker.conn, worker.id, [(one.id, one.attempt_id, 1.0)])
    world.witness.note("begin by beat", begun, OK, job=one.id, attempt=one.attempt_id, worker=worker.id)


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
    return None if one is None else write_something(world, worker, one)


async def claim_everything(world: World, worker: Worker, *, polls: bool) -> None:
    """Whatever can be claimed, to run and to poll."""
    worker.held += await claim_batch(world, worker, KINDS, 100)
    if polls:
        begun = world.witness.tick()
        claims = await claim_to_poll(worker.conn, worker.id, kinds=KINDS, queues=QUEUES)
        note_claims(world, worker, begun, claims, "poll")
        worker.held += claims
