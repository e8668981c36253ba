"""Enqueue: the best bulk call, and one job at a time from four concurrent tasks of one process.

The clock runs inside the enqueuing process, around the calls only, after a short warm-up of the same calls.
Raw bulk is one INSERT from arrays, the way that also hands out ids and can refuse duplicates; COPY stands beside it.
"""

from __future__ import annotations

from benchmarks.peers import Peer
from benchmarks.processes import time_child
from benchmarks.scene import Scene

TASKS = 4


async def enqueue(scene: Scene) -> None:
    """Rates of both ways."""

    async def measure(peer: Peer) -> None:
        jobs = scene.scale.drain
        ways = {"bulk": "enqueue_bulk"} | ({"copy": "enqueue_copy"} if peer.can_copy else {})
        for task, metric in ways.items():
            async with scene.database(peer) as url:
                await scene.server.settle(url)
                result = await time_child(task, peer.name, url, jobs=jobs)
                scene.samples.add(metric, peer, jobs / result["seconds"])
        async with scene.database(peer) as url:
            await scene.server.settle(url)
            single = await time_child("one_by_one", peer.name, url, jobs=scene.scale.one_by_one, tasks=TASKS)
            scene.samples.add("enqueue_one", peer, single["jobs"] / single["seconds"])

    await scene.in_turn(measure)
