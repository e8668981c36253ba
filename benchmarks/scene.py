"""What a workload needs: the server, the peers, how much to do, and where to write the numbers down."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.board import Board
from benchmarks.peers import Peer
from benchmarks.postgres import Server, connection
from benchmarks.processes import Child, ChildFailedError, run_child

SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Scale:
    """How much to do. Everything is bounded, in jobs and in seconds."""

    rounds: int = 3
    drain: int = 20_000
    drain_slow: int = 1_000
    one_by_one: int = 4_000
    pickups: int = 150
    steps: int = 200
    chain_seconds: float = 8
    deep: int = 1_000_000
    blocked: int = 100_000
    idle_seconds: float = 30
    xmin_seconds: float = 60
    xmin_window: float = 10
    xmin_jobs: int = 2_000_000


QUICK = Scale(
    rounds=1, drain=5_000, drain_slow=500, one_by_one=1_000, pickups=50, steps=50, chain_seconds=4,
    deep=100_000, blocked=10_000, idle_seconds=10, xmin_seconds=12, xmin_window=4, xmin_jobs=400_000,
)  # fmt: skip


class MeasurementError(Exception):
    """A peer did not do what was asked, so that its number would mean nothing."""


@dataclass
class Samples:
    """metric → peer → one number per round."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    notes: dict[str, dict[str, object]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, metric: str, peer: Peer, value: float) -> None:
        self.values[metric][peer.name].append(value)


@dataclass
class Scene:
    """One run."""

    server: Server
    peers: Sequence[Peer]
    scale: Scale
    samples: Samples
    console: Console
    failures: list[str] = field(default_factory=list)

    def jobs(self, peer: Peer) -> int:
        """How many jobs this peer drains."""
        return self.scale.drain_slow if peer.slow else self.scale.drain

    async def in_turn(self, measure: Callable[[Peer], Awaitable[None]], peers: Sequence[Peer] | None = None) -> None:
        """Peer A, B, C, then A, B, C again: whatever disturbs the machine for a while disturbs them all."""
        running = list(self.peers if peers is None else peers)
        for round_no in range(self.scale.rounds):
            for peer in list(running):
                started = time.monotonic()
                try:
                    await measure(peer)
                except (ChildFailedError, TimeoutError, MeasurementError) as error:
                    running.remove(peer)  # its later rounds would no longer stand beside the others'
                    self.failures.append(f"{peer.name}: {error}")
                    self.console.log(f"[red]{peer.name} is out of this workload:[/] {error}")
                    continue
                spent = time.monotonic() - started
                self.console.log(f"round {round_no + 1} of {self.scale.rounds}: {peer.name} ({spent:.1f} s)")

    async def make_templates(self) -> None:
        """Each peer's schema once; measurements start from copies of it."""
        for peer in self.peers:
            url = await self.server.create(template_of(peer))
            await run_child("prepare", peer.name, url)

    async def drop_templates(self) -> None:
        for peer in self.peers:
            await self.server.drop(template_of(peer))

    @asynccontextmanager
    async def database(self, peer: Peer, purpose: str = "run") -> AsyncIterator[str]:
        """A fresh database with this peer's schema."""
        async with self.server.database(f"bench_{peer.name}_{purpose}", template=template_of(peer)) as url:
            yield url

    @asynccontextmanager
    async def copy(self, peer: Peer, purpose: str) -> AsyncIterator[str]:
        """A copy of a database that was made for `purpose`, as it is now."""
        async with self.server.database(f"bench_{peer.name}_run", template=f"bench_{peer.name}_{purpose}") as url:
            yield url

    async def fill(self, peer: Peer, url: str, jobs: int) -> None:
        """Enqueue that many, and let the server come to rest."""
        await run_child("fill", peer.name, url, jobs=jobs, within=300)
        await self.server.settle(url)

    @asynccontextmanager
    async def board(self, *, stamps: int = 0, steps: int = 0) -> AsyncIterator[Board]:
        """A board in shared memory where there is any."""
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=SHARED_MEMORY) as name:
            board = Board.create(Path(name) / "board", stamps=stamps, steps=steps)
            try:
                yield board
            finally:
                board.close()

    @asynccontextmanager
    async def workers(self, peer: Peer, url: str, board: Board, *, count: int = 1) -> AsyncIterator[list[Child]]:
        """Worker processes, connected and waiting for `go`."""
        async with AsyncExitStack() as stack:
            children = [await stack.enter_async_context(Child("work", peer.name, url, board=board.path)) for _ in range(count)]
            for child in children:
                await child.ready()
            yield children


def template_of(peer: Peer) -> str:
    """The database that copies of this peer's schema are made from."""
    return f"bench_{peer.name}_template"


async def go(children: Sequence[Child]) -> None:
    """Start them all."""
    for child in children:
        await child.tell("go")


async def stop(children: Sequence[Child]) -> float:
    """Stop them all; their processor time in seconds."""
    for child in children:
        await child.tell("stop")
    results = [await child.result() for child in children]
    return sum(float(result["cpu_seconds"]) for result in results)


async def handled(board: Board, jobs: int, *, within: float = 180) -> int:
    """Wait until that many handlers have started; the moment in monotonic nanoseconds."""
    deadline = time.monotonic() + within
    while board.handled() < jobs:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{board.handled()} of {jobs} jobs were handled in {within:.0f} s")
        await asyncio.sleep(0.002)
    return time.monotonic_ns()


async def all_done(url: str, peer: Peer, *, within: float = 30) -> int:
    """Wait until the database knows of no unfinished job; the moment in monotonic nanoseconds."""
    deadline = time.monotonic() + within
    async with connection(url) as conn:
        while await conn.fetchval(peer.unfinished):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{peer.name} has unfinished jobs {within:.0f} s after the last handler")
            await asyncio.sleep(0.002)
        return time.monotonic_ns()
