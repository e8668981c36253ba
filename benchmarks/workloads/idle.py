"""Idle: what one worker with nothing to do asks of Postgres.

A proxy counts the statements that the client sends: `pg_stat_statements` is not part of every Postgres, a server's log may be
out of reach, and transaction counts miss statements that share a transaction. All peers idle at the same time, each in its own
database, which takes half a minute instead of two.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from proof.proxy import Relay, relaying

from benchmarks.peers import Peer
from benchmarks.scene import Scene, go, stop

SETTLE_SECONDS = 5.0  # registration, checks of the schema, first polls


async def idle(scene: Scene) -> None:
    """Statements a second, all of them and those beyond the heartbeat."""
    async with AsyncExitStack() as stack:
        relays: dict[str, Relay] = {}
        children = []
        for peer in scene.peers:
            url = await stack.enter_async_context(scene.database(peer))
            relay = relays[peer.name] = await stack.enter_async_context(relaying(url))
            board = await stack.enter_async_context(scene.board())
            children += await stack.enter_async_context(scene.workers(peer, relay.url, board))
        await go(children)
        await asyncio.sleep(SETTLE_SECONDS)
        for relay in relays.values():
            relay.statements.clear()
        await asyncio.sleep(scene.scale.idle_seconds)
        for peer in scene.peers:
            write_down(scene, peer, relays[peer.name].statements)
        await stop(children)


def write_down(scene: Scene, peer: Peer, statements: Counter[str]) -> None:
    """Write the rates and the most frequent statements to the samples."""
    seconds = scene.scale.idle_seconds
    beats = sum(count for text, count in statements.items() if peer.heartbeat is not None and peer.heartbeat.search(text))
    scene.samples.add("idle_statements_per_second", peer, statements.total() / seconds)
    scene.samples.add("idle_beyond_heartbeat_per_second", peer, (statements.total() - beats) / seconds)
    scene.samples.notes["idle_statements"][peer.name] = {
        " ".join(text.split())[:160]: count for text, count in statements.most_common(12)
    }
