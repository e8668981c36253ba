"""Workers that claim for their lanes, prefetch short jobs, and return jobs that wait too long. Called by: `schedules/play.py`.

`lanes.py` has the lanes. `working.py` has the workers that run a job as soon as they claim it.
"""

from __future__ import annotations

from proof.actors.finishing import give_back
from proof.actors.working import claim_batch, renew_lease
from proof.checker.witness import OK
from proof.schedules.world import KINDS, Work, Worker, World

from holdfast.jobs.begin import note_begun
from holdfast.jobs.release import release_worker
from holdfast.worker.loop import LONGEST_WAIT


def claim_for_lanes(world: World, worker: Worker) -> Work | None:
    """As the worker's loop claims: for free lanes, and short jobs ahead of them. A hint makes every worker claim, in turn."""
    hint = world.chance(0.5)

    async def go() -> None:
        others = [other for other in world.workers if other is not worker] if hint and world.alone else []
        for one in (worker, *others):
            await _claim_for_lanes(world, one)

    return go()


async def _claim_for_lanes(world: World, worker: Worker) -> None:
    wanted = worker.lanes.wanted()
    if wanted.limit <= 0:
        return
    facts = worker.lanes.facts()
    claims = await claim_batch(world, worker, list(wanted.takes.versions), wanted.limit, begins=False, facts=facts)
    others_hold = any(other.lanes.waiting for other in world.workers if other is not worker)
    worker.held += worker.lanes.hand_out(claims)
    met = {
        "claim: ahead": bool(worker.lanes.waiting),
        "claim: short kinds only": not wanted.any_kind,
        "claim: others hold ahead": facts["free"] > 0 and len(claims) < wanted.limit and others_hold,
    }
    world.witness.exercised.update(what for what, is_met in met.items() if is_met)


def beat_and_return(world: World, worker: Worker) -> Work | None:
    """The heartbeat as the worker's loop follows it: write what has begun, return what has waited for long."""

    async def go() -> None:
        await renew_lease(world, worker, [*worker.held, *worker.lanes.waiting])
        begun = world.witness.tick()
        running = worker.lanes.running()
        await note_begun(worker.conn, worker.id, running)
        for job_id, attempt, _ in running:
            world.witness.note("begin by beat", begun, OK, job=job_id, attempt=attempt, worker=worker.id)
        begun = world.witness.tick()
        clock, returned = world.clock.now, worker.lanes.return_waiting(LONGEST_WAIT)
        for one in returned:
            await give_back(world, worker, one)
        world.witness.note("return", begun, worker=worker.id, clock=clock, jobs=[one.id for one in returned])
        world.witness.exercised["returned"] += len(returned)

    return go()


def shut_down(world: World, worker: Worker) -> Work | None:
    """The keeper of a process that must end gives back what it holds. What has begun fails if its kind says so."""
    failing = KINDS if world.chance(0.5) else ()

    async def go() -> None:
        begun = world.witness.tick()
        running = [one.attempt_id for one in worker.held]
        tokens = [one.fence_token for one in worker.held]
        done = await release_worker(world.stage.sweeper, worker.id, failing=failing, begun=tokens)
        for job_id in [*done.released, *done.failed]:
            world.witness.note("release", begun, job=job_id)
        world.witness.note("shut down", begun, worker=worker.id, running=running, failed=done.failed)
        await world.incarnate(worker)

    return go()
