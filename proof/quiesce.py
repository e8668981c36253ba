"""The end of a schedule: the faults stop, everything is due, and one honest worker sees all of it through.

Bounded: a job that has not ended after so many rounds has been lost, and the checker will say so.
"""

from __future__ import annotations

from proof import ending, steering, working
from proof.world import Worker, World

from holdfast.jobs import control
from holdfast.jobs.model import LOCKS, SLOT

MOST_ROUNDS = 40
LEFT = """
    SELECT (SELECT count(*) FROM holdfast.jobs WHERE id > %(base)s AND state NOT IN ('completed', 'failed', 'cancelled')),
           (SELECT count(*) FROM holdfast.effects WHERE state = 'unwanted')
"""


async def quiesce(world: World) -> int:
    """Drain everything; the number of rounds that it took."""
    world.alone = True
    world.focus = None
    for kind in {event.detail["kind"] for event in world.witness.of("pause", "drain")}:
        begun = world.witness.tick()
        await control.resume(world.stage.operator, kind)
        world.witness.note("resume", begun, kind=kind)
    await steering.expire_all(world)
    closer = world.workers[0]
    await world.incarnate(closer)
    for round_number in range(MOST_ROUNDS):
        row = await (await world.stage.watcher.execute(LEFT, {"base": world.base})).fetchone()
        assert row is not None
        if row == (0, 0):
            return round_number
        await _round(world, closer)
    return MOST_ROUNDS


async def _round(world: World, closer: Worker) -> None:
    for act in (steering.pass_time, steering.promote, steering.sweep, steering.wake):
        work = act(world)
        assert work is not None
        await work
    await working.claim_everything(world, closer)
    plain = [claim for claim in closer.held if not claim.ties & (LOCKS | SLOT)]
    if plain:
        await ending.complete(world, closer, plain)
    for claim in list(closer.held):
        await ending.complete_one(world, closer, claim)
    await steering.clean_all(world)
