"""A held xmin: somebody's idle REPEATABLE READ transaction keeps every dead row while jobs stream through.

No index entry of a finished job can be removed meanwhile, so that each claim may have to step over all of them: the
classic way in which a queue in Postgres dies. Jobs are fed so that a few thousand always wait; the rates of the first
and the last seconds are reported.
"""

from __future__ import annotations

import asyncio

from benchmarks.board import Board
from benchmarks.peers import Peer
from benchmarks.postgres import connection
from benchmarks.processes import Child
from benchmarks.scene import Scene, go, stop

BACKLOG = 5_000
PEERS = ("raw", "holdfast")


async def held_xmin(scene: Scene) -> None:
    """First and last rates, for raw and Holdfast; once each, because it takes a minute."""
    for peer in (peer for peer in scene.peers if peer.name in PEERS):
        await measure(scene, peer)


async def measure(scene: Scene, peer: Peer) -> None:
    """Stream jobs while the transaction is open."""
    scale = scene.scale
    async with scene.database(peer) as url, scene.board() as board:
        await scene.server.settle(url)
        async with (
            scene.workers(peer, url, board) as children,
            Child("feed", peer.name, url, board=board.path, backlog=BACKLOG, jobs=scale.xmin_jobs) as feeder,
            connection(url) as holder,
        ):
            await feeder.ready()
            transaction = holder.transaction(isolation="repeatable_read", readonly=True)
            await transaction.start()
            await holder.fetchval("SELECT count(*) FROM pg_class")  # only a query takes the snapshot
            await go([*children, feeder])
            counts = await count_each_second(board, scale.xmin_seconds)
            await transaction.rollback()
            await feeder.tell("stop")
            fed = await feeder.result()
            await stop(children)
    window = round(scale.xmin_window)
    scene.samples.add("xmin_first_rate", peer, (counts[window] - counts[0]) / window)
    scene.samples.add("xmin_last_rate", peer, (counts[-1] - counts[-1 - window]) / window)
    scene.samples.notes["xmin_enqueued"][peer.name] = fed["enqueued"]


async def count_each_second(board: Board, seconds: float) -> list[int]:
    """How many jobs had been run after 0, 1, 2 … seconds."""
    clock = asyncio.get_running_loop().time
    began = clock()
    counts = [board.handled()]
    for second in range(1, round(seconds) + 1):
        await asyncio.sleep(began + second - clock())
        counts.append(board.handled())
    return counts
