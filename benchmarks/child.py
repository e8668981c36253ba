"""What runs in a child process: one peer, one task, one line of JSON at the end. Called by: processes.py.

Every measurement has fresh processes, so that no peer inherits another's imports, garbage or connections. A child says
`ready` when it is connected, waits for `go`, and ends at `stop` or when its input closes (the parent is gone).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from benchmarks.board import Board
from benchmarks.peers import CanBlock, CanCopy, Client, Peer, load

Result = dict[str, Any]
GRACE_SECONDS = 10
FILL_BATCH = 20_000


class Parent:
    """The process that started this one, heard on stdin."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def connect(cls) -> Parent:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def wait_for(self, word: str) -> None:
        """Say that we are here, and wait to be told `word`."""
        if word == "go":
            print("ready", flush=True)
        line = (await self._reader.readline()).decode().strip()
        if line not in (word, ""):
            raise RuntimeError(f"expected {word!r}, was told {line!r}")


async def prepare(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Create the peer's schema."""
    await peer.prepare(arguments.url)
    return {}


async def work(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Be one worker process from `go` to `stop`."""
    board = Board.join(arguments.board)
    async with peer.worker(arguments.url, board) as worker:
        await parent.wait_for("go")
        before = cpu_seconds()
        running = asyncio.create_task(worker.run())
        told = asyncio.create_task(parent.wait_for("stop"))
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        used = cpu_seconds() - before
        if not told.done():
            told.cancel()
            await running
            raise RuntimeError("the worker ended before it was told to")
        worker.stop()
        await asyncio.wait({running}, timeout=GRACE_SECONDS)
        if running.done():
            running.result()
        running.cancel()
    return {"cpu_seconds": used}


async def fill(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Enqueue `--jobs` without measuring it."""
    async with peer.client(arguments.url) as client:
        for first in range(0, arguments.jobs, FILL_BATCH):
            await client.enqueue_many(range(first, min(first + FILL_BATCH, arguments.jobs)))
    return {}


async def block(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Put `--jobs` jobs behind one lock."""
    async with peer.client(arguments.url) as client:
        await cast("CanBlock", client).enqueue_blocked(arguments.jobs)
    return {}


async def bulk(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Enqueue `--jobs` by one bulk call, and measure it."""
    async with peer.client(arguments.url) as client:
        await client.enqueue_many(range(100))  # statements are prepared, the pool is warm
        await parent.wait_for("go")
        started = time.monotonic()
        await client.enqueue_many(range(arguments.jobs))
        return {"seconds": time.monotonic() - started}


async def copy(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """The same by COPY."""
    async with peer.client(arguments.url) as client:
        copying = cast("CanCopy", client)
        await copying.copy_many(range(100))
        await parent.wait_for("go")
        started = time.monotonic()
        await copying.copy_many(range(arguments.jobs))
        return {"seconds": time.monotonic() - started}


async def one_by_one(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Enqueue `--jobs` one at a time from `--tasks` concurrent tasks, and measure it."""

    async def enqueue(client: Client, numbers: range) -> None:
        for number in numbers:
            await client.enqueue_one(number)

    share = arguments.jobs // arguments.tasks
    async with peer.client(arguments.url) as client:
        await asyncio.gather(*(enqueue(client, range(20)) for _ in range(arguments.tasks)))
        await parent.wait_for("go")
        started = time.monotonic()
        await asyncio.gather(*(enqueue(client, range(share)) for _ in range(arguments.tasks)))
        return {"seconds": time.monotonic() - started, "jobs": share * arguments.tasks}


async def spaced(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Enqueue `--jobs` with pauses; report when each call began and when it returned, that is, had committed."""
    pauses = random.Random(arguments.jobs)
    called, committed = [], []
    async with peer.client(arguments.url) as client:
        await parent.wait_for("go")
        for number in range(arguments.jobs):
            await asyncio.sleep(pauses.uniform(0.020, 0.040))
            called.append(time.monotonic_ns())
            await client.enqueue_one(number)
            committed.append(time.monotonic_ns())
    return {"called": called, "committed": committed}


async def first_step(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Start a chain."""
    async with peer.client(arguments.url) as client:
        await client.enqueue_step(0)
    return {}


async def feed(peer: Peer, arguments: argparse.Namespace, parent: Parent) -> Result:
    """Keep `--backlog` jobs waiting until told to stop or `--jobs` are enqueued."""
    board = Board(arguments.board)
    batch = arguments.backlog // 5
    enqueued = 0
    async with peer.client(arguments.url) as client:
        await parent.wait_for("go")
        told = asyncio.create_task(parent.wait_for("stop"))
        while not told.done() and enqueued < arguments.jobs:
            if enqueued - board.handled() > arguments.backlog - batch:
                await asyncio.sleep(0.005)
                continue
            await client.enqueue_many(range(enqueued, enqueued + batch))
            enqueued += batch
        await told
    return {"enqueued": enqueued}


def cpu_seconds() -> float:
    """Processor time of this process and of the children that it has waited for."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


Task = Callable[[Peer, argparse.Namespace, Parent], Awaitable[Result]]
TASKS: dict[str, Task] = {
    task.__name__: task for task in (prepare, work, fill, block, bulk, copy, one_by_one, spaced, first_step, feed)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("peer")
    parser.add_argument("url")
    parser.add_argument("--board", type=Path)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=0)
    arguments = parser.parse_args()

    async def run() -> Result:
        return await TASKS[arguments.task](load(arguments.peer), arguments, await Parent.connect())

    print(json.dumps(asyncio.run(run())), flush=True)


if __name__ == "__main__":
    main()
