"""What a peer must be able to do to be measured. One file per peer; nothing else knows which peers there are.

Each peer is used through its public interface, with the settings that its own documents recommend for speed. The
handler of every peer does the same: one call of `board.started(number)`, and in a chain it enqueues the next step.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from importlib import metadata
from typing import Protocol

from benchmarks.board import Board

NAMES = ("raw", "pgqueuer", "procrastinate", "holdfast")


class Client(Protocol):
    """A program that enqueues: connected, warm, and used by up to four tasks at once."""

    async def enqueue_one(self, number: int) -> None:
        """One no-op job, committed when this returns, and a waiting worker told of it."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Many no-op jobs by the peer's best bulk call, committed when this returns."""

    async def enqueue_step(self, number: int) -> None:
        """One job of the chain, committed when this returns. Its handler starts the next one, up to `board.steps`."""


class Worker(Protocol):
    """One worker process's share: connected, but nothing claimed before `run`."""

    async def run(self) -> None:
        """Claim and run jobs until `stop`. Calls `board.claiming()` before each claim, at least before the first."""

    def stop(self) -> None:
        """Ask `run` to return soon."""


class Peer(Protocol):
    """One way to run jobs in Postgres."""

    name: str
    packages: tuple[str, ...]  # whose versions are reported
    settings: str  # what was chosen, in one sentence for the report
    slow: bool  # measured with a twentieth of the jobs, because it would take minutes otherwise
    unfinished: str  # SQL: is there a job that is not done yet? One boolean
    heartbeat: re.Pattern[str] | None  # which statements of an idle worker are its heartbeat
    can_copy: bool  # its client fits `CanCopy`
    can_block: bool  # its client fits `CanBlock`

    async def prepare(self, url: str) -> None:
        """Create the schema in an empty database."""

    def client(self, url: str) -> AbstractAsyncContextManager[Client]:
        """Connect to enqueue."""

    def worker(self, url: str, board: Board) -> AbstractAsyncContextManager[Worker]:
        """Connect to work."""


class CanCopy(Protocol):
    """A client that can also enqueue by COPY where its `enqueue_many` is an INSERT: reported beside it."""

    async def copy_many(self, numbers: Sequence[int]) -> None:
        """Like `enqueue_many`."""


class CanBlock(Protocol):
    """A client whose jobs can wait for a lock; peers without such a thing are left out of that measurement."""

    async def enqueue_blocked(self, count: int) -> None:
        """`count` jobs that all wait for one lock that another job holds for as long as the measurement takes."""


class PeerMissingError(Exception):
    """This peer cannot be measured here: the message says why."""


def load(name: str) -> Peer:
    """The peer of that name, or `PeerMissingError` when its packages are not installed."""
    if name not in NAMES:
        raise PeerMissingError(f"no peer is called {name}; there are {', '.join(NAMES)}")
    try:
        peer: Peer = importlib.import_module(f"benchmarks.peers.{name}").PEER
    except ImportError as error:
        raise PeerMissingError(f"{name} is left out: {error}") from error
    return peer


def versions(peer: Peer) -> dict[str, str]:
    """The versions that were measured."""
    return {package: metadata.version(package) for package in peer.packages}
