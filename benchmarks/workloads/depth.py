"""Depth: does a drain slow down when many jobs wait?

`depth` runs the same number of jobs out of a small table and out of one with a million. `blocked` runs the same small
table with a hundred thousand more jobs that all wait for one lock. The clock runs from the first claim to the last
handler's start, in all of them alike, because the big tables are never empty.
"""

from __future__ import annotations

from benchmarks.peers import Peer
from benchmarks.processes import run_child
from benchmarks.scene import Scene, go, handled, stop


async def depth(scene: Scene) -> None:
    """Rates out of a small and out of a deep table. Slow peers are left out: they would fill for minutes."""
    for peer in (peer for peer in scene.peers if not peer.slow):
        async with scene.database(peer, "deep") as deep_url:
            await scene.fill(peer, deep_url, scene.scale.deep)

            async def measure(peer: Peer, deep_url: str = deep_url) -> None:
                await measure_small(scene, peer, "drain_from_small")
                rate = await rate_of(scene, peer, deep_url)
                scene.samples.add("drain_from_deep", peer, rate)

            await scene.in_turn(measure, [peer])


async def blocked(scene: Scene) -> None:
    """Rates with and without a crowd behind one lock, for peers that know locks to wait for."""
    for peer in (peer for peer in scene.peers if peer.can_block):
        async with scene.database(peer, "crowd") as crowd_url:
            await run_child("block", peer.name, crowd_url, jobs=scene.scale.blocked, within=300)
            await scene.fill(peer, crowd_url, scene.scale.drain)

            async def measure(peer: Peer) -> None:
                await measure_small(scene, peer, "drain_unblocked")
                async with scene.copy(peer, "crowd") as url:  # making the crowd takes longer than measuring beside it
                    await scene.server.settle(url)
                    scene.samples.add("drain_beside_blocked", peer, await rate_of(scene, peer, url))

            await scene.in_turn(measure, [peer])


async def measure_small(scene: Scene, peer: Peer, metric: str) -> None:
    """The same drain out of a table that holds nothing else."""
    async with scene.database(peer) as url:
        await scene.fill(peer, url, scene.scale.drain)
        scene.samples.add(metric, peer, await rate_of(scene, peer, url))


async def rate_of(scene: Scene, peer: Peer, url: str) -> float:
    """Jobs a second until as many as the small table holds have been run."""
    jobs = scene.scale.drain
    async with scene.board() as board, scene.workers(peer, url, board) as children:
        await go(children)
        ended = await handled(board, jobs)
        began = board.first_claim()
        await stop(children)
        assert began is not None
        return jobs / (ended - began) * 1e9
