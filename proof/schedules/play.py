"""Seeded random schedules on real Postgres: the seed selects the next act and which transactions overlap.

    python -m proof.schedules --schedules 10000 --processes 2
    python -m proof.schedules --seed 123            # replay one schedule and print what happened

A schedule is two or three dozen acts of workers, an enqueuer, an operator and a sweeper, one after the other or
interleaved statement by statement (`stepper.py`). Then the faults stop, all jobs are drained, and both logs are checked
(`checker/check.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
from proof.actors import enqueuing, finishing, observing, operating, prefetching, working
from proof.actors.enqueuing import THEMES
from proof.checker.check import Violation, check
from proof.checker.records import Execution, read_records
from proof.schedules.quiesce import quiesce
from proof.schedules.stepper import Part, SteppedConnection, Stepper, Stuck
from proof.schedules.world import Stage, Work, Worker, World

from holdfast.errors import HoldfastError

ByWorker = Callable[[World, Worker], Work | None]
ByOther = Callable[[World], Work | None]

WORKERS_ACTS: tuple[tuple[int, ByWorker], ...] = (
    (8, working.claim_some),
    (5, working.claim_this),
    (3, working.claim_polls),
    (6, prefetching.claim_for_lanes),
    (3, working.beat),
    (3, prefetching.beat_and_return),
    (10, working.write_on),
    (9, finishing.write_as_ghost),
    (3, finishing.end_plain),
    (2, finishing.end_and_chain),
    (13, finishing.end),
)
MAKING = (
    (8, enqueuing.make_one),
    (3, enqueuing.make_many),
    (2, enqueuing.make_with_key),
    (1, enqueuing.make_and_undo),
    (3, enqueuing.make_with_data),
    (3, enqueuing.make_pipeline),
)
OTHERS_ACTS: dict[str, tuple[tuple[int, ByOther], ...]] = {
    "operator": (
        (5, operating.stop_a_job),
        (3, operating.run_again),
        (2, operating.take_from_silent),
        (1, operating.stop_a_pipeline),
        (1, operating.say_about_a_kind),
    ),
    "sweeper": ((5, operating.sweep), (2, operating.promote), (2, operating.wake), (2, operating.clean_up)),
}
# Faults come one at a time, between the others: they use the watcher's connection, or change who a worker is.
FAULTS: tuple[tuple[int, ByWorker], ...] = (
    (3, operating.crash),
    (5, operating.stall),
    (2, operating.bury),
    (1, operating.step_down),
    (2, prefetching.shut_down),
    (2, working.claim_in_vain),
    (3, operating.find_strays),
)
FAVOURITES: dict[str, ByWorker] = {"effects": working.write_on, "engines": working.claim_polls}
AHEAD = (prefetching.claim_for_lanes, prefetching.beat_and_return)  # favourites where workers mostly claim for their lanes
TIME: tuple[tuple[int, ByOther], ...] = ((5, operating.pass_time), (1, operating.overrun))

ACTORS = ("worker", "enqueuer", "operator", "sweeper", "fault", "time")
OVERLAPS = 0.22  # how many of the steps are several acts at once
UNEXPECTED = (psycopg.Error, AssertionError, Stuck, HoldfastError)
SEDIMENT = 25  # schedules between two sweepings of the tables


@dataclass(slots=True)
class Result:
    """What one schedule came to."""

    seed: int
    theme: str
    violations: list[Violation]
    exercised: Counter[str]
    events: int
    rounds: int
    execution: Execution | None = field(default=None, repr=False)


async def play(stage: Stage, seed: int) -> Result:
    """Play one schedule to its end and check it."""
    rng = random.Random(seed)
    theme = rng.choice(tuple(THEMES))
    world = await World.begin(stage, seed, theme, rng)
    for _ in range(rng.randint(4, 6) if world.holds_ahead else rng.randint(1, 2)):
        await _one_act(world, "enqueuer")
    for _ in range(rng.randint(20, 36)):
        world.clock.now += world.step
        if world.chance(OVERLAPS):
            await _several_acts(world)
            if world.chance(0.6):
                await observing.look_around(world)
        else:
            await _one_act(world)
            if world.chance(0.08):
                await observing.look_around(world)
    return await _conclude(world)


async def _conclude(world: World) -> Result:
    stage = world.stage
    rounds = 0
    try:
        rounds = await quiesce(world)
    except UNEXPECTED as error:
        _note_error(world, "quiesce", error)
    records = await read_records(stage.watcher, world.base)
    for move in records.moves:
        world.witness.exercised[f"move: {move.move}"] += 1
    execution = Execution(records, world.witness, frozenset(world.outside))
    violations = check(execution)
    if violations or stage.played % SEDIMENT == 0:
        await stage.clear()
    exercised, events = world.witness.exercised, len(world.witness.events)
    return Result(world.seed, world.theme, violations, exercised, events, rounds, execution)


# ---------------------------------------------------------------------------------------------------------------------
# Who does what next
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """An act that is ready to go, and the connection it needs."""

    name: str
    conn: SteppedConnection
    work: Work


def _draw(world: World, who: str | None = None) -> Turn | None:
    """The next act, drawn from those of `who` or of anybody. None: it had nothing to do."""
    who = who or world.rng.choices(ACTORS, (56, 10 if len(world.jobs) < world.crowd else 2, 6, 9, 6, 7))[0]
    if who in ("worker", "fault"):
        busy = [worker for worker in world.workers if worker.held]
        holding = [worker for worker in busy if worker.lanes.waiting]
        chosen = holding if who == "fault" and holding else busy
        worker = world.rng.choice(chosen if chosen and world.chance(0.7) else world.workers)
        act = _weighted(world, WORKERS_ACTS if who == "worker" else FAULTS)
        return _turn(act.__name__, worker.conn, act(world, worker))
    if who == "time":
        act = _weighted(world, TIME)
        return _turn(act.__name__, world.stage.watcher, act(world))
    conn = getattr(world.stage, who)
    if who in ("enqueuer", "client"):
        act = _weighted(world, MAKING)
        return _turn(act.__name__, conn, act(world, conn))
    act = _weighted(world, OTHERS_ACTS[who])
    return _turn(act.__name__, conn, act(world))


def _weighted(world: World, acts: tuple[tuple[int, Any], ...]) -> Any:
    favourites = (FAVOURITES.get(world.theme), *(AHEAD if world.holds_ahead else ()))
    weights = [4 * weight if act in favourites else weight for weight, act in acts]
    return world.rng.choices([act for _, act in acts], weights)[0]


def _turn(name: str, conn: SteppedConnection, work: Work | None) -> Turn | None:
    return None if work is None else Turn(name, conn, work)


async def _one_act(world: World, who: str | None = None) -> None:
    world.alone, world.focus = True, None
    for _ in range(10):  # some acts have nothing to do yet
        turn = _draw(world, who)
        if turn is not None:
            await _guarded(world, turn)
            return


async def _guarded(world: World, turn: Turn) -> None:
    try:
        await turn.work
    except UNEXPECTED as error:
        _note_error(world, turn.name, error)


def _note_error(world: World, act: str, error: BaseException) -> None:
    """Nothing of this kind may come out of the kernel: the checker makes a violation of it."""
    text = f"{type(error).__name__}: {str(error).strip()}".replace("\n", " · ")
    world.witness.note("error", world.witness.tick(), act=act, error=text[:700])


# ---------------------------------------------------------------------------------------------------------------------
# Several at once
# ---------------------------------------------------------------------------------------------------------------------


async def _several_acts(world: World) -> None:
    """Two or three acts at once, by different actors, most often around one job."""
    first = await _choose_focus(world)
    world.alone = False
    turns: list[Turn] = []
    wanted = world.rng.choice((2, 2, 3))
    for _ in range(8):
        who = first or world.rng.choices(("worker", "enqueuer", "client", "operator", "sweeper"), (12, 3, 2, 4, 4))[0]
        first = None
        turn = _draw(world, who)
        if turn is None:
            continue
        if any(turn.conn is other.conn for other in turns):
            turn.work.close()
            continue
        turns.append(turn)
        if len(turns) == wanted:
            break
    world.witness.note("overlap", world.witness.tick(), acts=[turn.name for turn in turns], focus=world.focus)
    await _at_once(world, turns)
    world.alone, world.focus = True, None


async def _choose_focus(world: World) -> str | None:
    """Choose the job to meet at: held by somebody, if that is possible, whose lease may just be over. Who comes first."""
    holders = [worker for worker in world.workers if worker.held]
    world.focus = None
    if holders and world.chance(0.7):
        worker = world.rng.choice(holders)
        world.focus = world.rng.choice(worker.held).id
        if world.chance(0.4):
            await operating.expire(world, worker.id)
            return "sweeper" if world.chance(0.6) else None
    elif world.jobs:
        world.focus = world.rng.choice(world.jobs[-5:])
    return None


async def _at_once(world: World, turns: list[Turn]) -> None:
    def waited(name: str, statement: int) -> None:
        world.witness.note("waited", world.witness.tick(), act=name, statement=statement)

    stepper = Stepper(world.rng, world.stage.watcher, waited)
    parts = [Part(turn.name, turn.conn, _guarded(world, turn)) for turn in turns]
    try:
        await stepper.run(parts)
    except Stuck as error:
        _note_error(world, " + ".join(turn.name for turn in turns), error)


# ---------------------------------------------------------------------------------------------------------------------
# Many of them
# ---------------------------------------------------------------------------------------------------------------------


async def play_all(url: str, seeds: list[int], on_result: Callable[[Result], bool]) -> None:
    """Play these seeds on one database, until they are over or `on_result` says stop by returning True."""
    async with AsyncExitStack() as stack:
        stage = await Stage.open(url, stack)
        await stage.clear()
        for seed in seeds:
            if on_result(await play(stage, seed)):
                return


def play_now(url: str, seeds: list[int], on_result: Callable[[Result], bool] = lambda _: False) -> None:
    """`play_all` for a caller without an event loop."""
    asyncio.run(play_all(url, seeds, on_result))


if __name__ == "__main__":
    from proof.schedules.run import main

    main()
