"""Pick-up: how long a job waits when a worker is idle. Single enqueues from another process, 20 to 40 ms apart.

From the return of the enqueue call (the caller knows that it is committed) to the first line of the handler. The time
from the beginning of the call is reported too: a client that is slow to return must not look quick to be picked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import quantiles

from benchmarks.peers import Peer
from benchmarks.processes import Child
from benchmarks.scene import Scene, go, handled, stop

IDLE_SECONDS = 1.0


async def pickup(scene: Scene) -> None:
    """p50 and p95 in milliseconds."""

    async def measure(peer: Peer) -> None:
        jobs = scene.scale.pickups
        async with scene.database(peer) as url, scene.board(stamps=jobs) as board:
            await scene.server.settle(url)
            async with (
                scene.workers(peer, url, board) as children,
                Child("spaced", peer.name, url, jobs=jobs) as client,
            ):
                await client.ready()
                await go(children)
                await asyncio.sleep(IDLE_SECONDS)
                await client.tell("go")
                calls = await client.result(within=60)
                await handled(board, jobs, within=30)
                await stop(children)
            started = board.stamps()
        add_percentiles(scene, peer, "pickup", calls["committed"], started)
        add_percentiles(scene, peer, "pickup_from_call", calls["called"], started)

    await scene.in_turn(measure)


def add_percentiles(scene: Scene, peer: Peer, metric: str, since: Sequence[int], until: Sequence[int]) -> None:
    """Write down p50 and p95 of the waits."""
    waits = [(end - begin) / 1e6 for begin, end in zip(since, until, strict=True)]
    cuts = quantiles(waits, n=100, method="inclusive")
    scene.samples.add(f"{metric}_p50_ms", peer, cuts[49])
    scene.samples.add(f"{metric}_p95_ms", peer, cuts[94])
