"""The end of a schedule: the faults stop, everything is due, and one worker without faults completes all jobs.

The number of rounds is bounded: the checker reports a job that has not ended by then as lost.
"""

from __future__ import annotations

from typing import NamedTuple

from proof.actors import finishing, operating, working
from proof.schedules.world import Worker, World

from holdfast.jobs import control

MOST_ROUNDS = 40
LEFT = """
    SELECT count(*) AS live, count(*) FILTER (WHERE state = 'running') AS held,
           count(*) FILTER (WHERE state = 'submitted') AS submitted, count(*) FILTER (WHERE state = 'blocked') AS blocked,
           count(*) FILTER (WHERE state = 'pending' AND run_after IS NOT NULL) AS delayed,
           (SELECT count(*) FROM holdfast.effects WHERE state = 'unwanted') AS unwanted
    FROM holdfast.jobs WHERE id > %(base)s AND state NOT IN ('completed', 'failed', 'cancelled')
"""


class Left(NamedTuple):
    """What there is still to do."""

    live: int
    held: int
    submitted: int
    blocked: int
    delayed: int
    unwanted: int


async def quiesce(world: World) -> int:
    """Drain everything; the number of rounds that it took."""
    world.alone = True
    world.focus = None
    for kind in sorted({event.detail["kind"] for event in world.witness.of("pause", "drain")}):
        begun = world.witness.tick()
        await control.resume(world.stage.operator, kind)
        world.witness.note("resume", begun, kind=kind)
    await operating.expire_all(world)
    closer = world.workers[0]
    await world.incarnate(closer)
    for round_number in range(MOST_ROUNDS):
        row = await (await world.stage.watcher.execute(LEFT, {"base": world.base})).fetchone()
        left = Left(*row or (0, 0, 0, 0, 0, 0))
        if not left.live and not left.unwanted:
            return round_number
        await _round(world, closer, left)
    return MOST_ROUNDS


async def _round(world: World, closer: Worker, left: Left) -> None:
    """What is needed, and nothing else: there are thousands of schedules to come."""
    if left.submitted or left.delayed or left.unwanted:
        await operating.pass_time(world)
    if left.delayed:
        await operating.promote(world)
    if left.held:
        await operating.sweep(world)
    if left.blocked:
        await operating.wake(world)
        await operating.give_up_orphans(world)
    await working.claim_everything(world, closer, polls=bool(left.submitted or left.held))
    plain = {claim.id: claim for claim in closer.held if not claim.ties}
    if plain:
        await finishing.complete(world, closer, list(plain.values()))
    for claim in list(closer.held):
        await finishing.complete_one(world, closer, claim)
    if left.unwanted:
        await operating.clean_all(world)
