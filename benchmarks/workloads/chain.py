"""Chain: every job starts the next one; one worker process. Milliseconds from one handler's start to the next one's.

Raw does what a library without a short cut does: enqueue and notify, claim, finish, each committed by itself. A peer
that is slow here (procrastinate can miss a notification and then waits for its 5 s poll) is cut off after some seconds,
and the mean is over the steps that it made.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import fmean, median

from benchmarks.board import Board
from benchmarks.peers import Peer
from benchmarks.processes import run_child
from benchmarks.scene import MeasurementError, Scene, go, stop


async def chain(scene: Scene) -> None:
    """Mean and p50 of a step."""

    async def measure(peer: Peer) -> None:
        steps = scene.scale.steps
        async with scene.database(peer) as url, scene.board(stamps=steps, steps=steps) as board:
            await scene.server.settle(url)
            async with scene.workers(peer, url, board) as children:
                await go(children)
                await run_child("first_step", peer.name, url)
                await finished_or_late(board, steps, scene.scale.chain_seconds)
                started = [stamp for stamp in board.stamps() if stamp]
                await stop(children)
        waits = [(later - earlier) / 1e6 for earlier, later in pairwise(started)]
        if not waits:
            raise MeasurementError(f"{peer.name} did not make one step in {scene.scale.chain_seconds:.0f} s")
        scene.samples.add("chain_mean_ms", peer, fmean(waits))
        scene.samples.add("chain_p50_ms", peer, median(waits))
        scene.samples.add("chain_steps", peer, len(waits))

    await scene.in_turn(measure)


async def finished_or_late(board: Board, steps: int, seconds: float) -> None:
    """Wait for the last step, but not for ever."""
    deadline = time.monotonic() + seconds
    while board.handled() < steps and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
