"""Drain: jobs that were enqueued before are run by one worker process, then by two.

The clock starts when the first worker begins its first claim and stops when the database knows of no unfinished job: a
worker that runs jobs quickly and writes their ends slowly gains nothing. The database is asked only after the last
handler has started, so that asking does not slow the drain.
"""

from __future__ import annotations

from benchmarks.peers import Peer
from benchmarks.scene import MeasurementError, Scene, all_done, go, handled, stop


async def drain(scene: Scene) -> None:
    """Rates with one and with two worker processes, and the worker's processor time for a job."""

    async def measure(peer: Peer) -> None:
        await drain_once(scene, peer, workers=1, metric="drain_one")
        await drain_once(scene, peer, workers=2, metric="drain_two")

    await scene.in_turn(measure)


async def drain_once(scene: Scene, peer: Peer, *, workers: int, metric: str) -> None:
    """Fill a fresh database and empty it."""
    jobs = scene.jobs(peer)
    async with scene.database(peer) as url, scene.board() as board:
        await scene.fill(peer, url, jobs)
        async with scene.workers(peer, url, board, count=workers) as children:
            await go(children)
            await handled(board, jobs)
            ended = await all_done(url, peer)
            used = await stop(children)
        began = board.first_claim()
        if began is None:
            raise MeasurementError(f"{peer.name} did not say when it began its first claim")
        if board.handled() != jobs:
            raise MeasurementError(f"{peer.name} ran {board.handled()} handlers for {jobs} jobs")
    scene.samples.add(metric, peer, jobs / (ended - began) * 1e9)
    scene.samples.add(f"{metric}_cpu_us", peer, used / jobs * 1e6)
