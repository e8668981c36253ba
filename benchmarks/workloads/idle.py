"""Idle: what one worker with nothing to do asks of Postgres.

Statements are counted on the wire (`proxy.py` says why). All peers idle at the same time, each in its own database:
there is nothing to disturb, and it takes half a minute instead of two.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from benchmarks.peers import Peer
from benchmarks.proxy import StatementCounter, counting
from benchmarks.scene import Scene, go, stop

SETTLE_SECONDS = 5.0  # registration, checks of the schema, first polls


async def idle(scene: Scene) -> None:
    """Statements a second, all of them and those beyond the heartbeat."""
    async with AsyncExitStack() as stack:
        counters: dict[str, StatementCounter] = {}
        children = []
        for peer in scene.peers:
            url = await stack.enter_async_context(scene.database(peer))
            proxied, counters[peer.name] = await stack.enter_async_context(counting(url))
            board = await stack.enter_async_context(scene.board())
            children += await stack.enter_async_context(scene.workers(peer, proxied, board))
        await go(children)
        await asyncio.sleep(SETTLE_SECONDS)
        for counter in counters.values():
            counter.statements.clear()
        await asyncio.sleep(scene.scale.idle_seconds)
        for peer in scene.peers:
            write_down(scene, peer, counters[peer.name])
        await stop(children)


def write_down(scene: Scene, peer: Peer, counter: StatementCounter) -> None:
    """Rates, and the statements themselves for whoever asks what they were."""
    seconds = scene.scale.idle_seconds
    beats = sum(
        count for text, count in counter.statements.items() if peer.heartbeat is not None and peer.heartbeat.search(text)
    )
    scene.samples.add("idle_statements_per_second", peer, counter.statements.total() / seconds)
    scene.samples.add("idle_beyond_heartbeat_per_second", peer, (counter.statements.total() - beats) / seconds)
    scene.samples.notes["idle_statements"][peer.name] = {
        " ".join(text.split())[:160]: count for text, count in counter.statements.most_common(12)
    }
