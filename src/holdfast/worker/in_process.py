"""Jobs inside another program, above all a web application: a client for its routes and a worker in its event loop.

Called by: `apps/in_process.py`, which knows the settings. A worker that fails must not take its host along: it is started
again, and the host goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.errors import UsageError
from holdfast.jobs.client import Client, connect
from holdfast.jobs.current import make_default
from holdfast.telemetry.log import log
from holdfast.worker.kinds import Job, registered
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions
from holdfast.worker.retries import retry_forever


@asynccontextmanager
async def in_process(
    url: str, kinds: Iterable[Job[..., Any]] | None, options: WorkerOptions, *, run: bool
) -> AsyncIterator[Client]:
    """Inside the block `kind.enqueue(...)` works in every task of this process; with `run`, jobs run here too."""
    known = list(registered().values() if kinds is None else kinds)
    if run and not known:
        raise UsageError(
            "no kinds to run: import the modules with @job functions before the application starts, or say run=False"
        )
    async with connect(url) as client:
        before = make_default(client)
        try:
            if not run:
                yield client
                return
            async with _running(client, url, known, options):
                yield client
        finally:
            make_default(before)


@asynccontextmanager
async def _running(client: Client, url: str, kinds: list[Job[..., Any]], options: WorkerOptions) -> AsyncIterator[None]:
    runner = Runner(url, kinds, options)
    client.on_change = runner.nudge
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        client.on_change = None
        runner.stop()
        await task


class Runner:
    """A worker that is started again when it fails."""

    def __init__(self, url: str, kinds: list[Job[..., Any]], options: WorkerOptions) -> None:
        self._url, self._kinds, self._options = url, kinds, options
        self._worker: Worker | None = None
        self._stopping = asyncio.Event()

    def nudge(self) -> None:
        """Something was committed here that a worker may want to know: no hint has to go round through the database."""
        if self._worker is not None:
            self._worker.nudge()

    def stop(self) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    async def run(self) -> None:
        """Until `stop()`: one worker after the other, each a new incarnation."""
        async for number in retry_forever(first=1.0, longest=30.0):
            if self._stopping.is_set():
                return
            self._worker = Worker(self._url, self._kinds, self._options)
            try:
                await self._worker.run()
                return
            except Exception as error:  # whatever it is, the host goes on
                log.error("runner_failed", error=f"{type(error).__name__}: {error}", starts=number + 1)
