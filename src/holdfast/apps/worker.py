"""A worker as a program: a keeper and its executors, or all in one process. Called by: `holdfast worker run`, the demo."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from holdfast.apps.options import grace_of, max_memory_of
from holdfast.crashpoints import arm_from_settings
from holdfast.database.pool import place_of
from holdfast.settings import Settings
from holdfast.telemetry.log import configuration, log
from holdfast.worker.keeper import Keeper
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions
from holdfast.worker.orders import Mode, Orders


def orders_from(
    settings: Settings,
    url: str,
    modules: Sequence[str],
    *,
    kinds: Sequence[str] = (),
    queues: Sequence[str] = ("default",),
    concurrency: int = 10,
    mode: Mode = "serve",
) -> Orders:
    """What the executors will be told, from the settings and the command line."""
    return Orders(
        url=url,
        modules=tuple(modules),
        kinds=tuple(kinds),
        queues=tuple(queues),
        concurrency=1 if mode == "once" else concurrency,
        mode=mode,
        beat=settings.beat_seconds,
        poll=min(settings.poll_seconds, 2 * settings.beat_seconds),
        lease=settings.lease,
        grace=grace_of(settings).total_seconds(),
        keep_logs=settings.keep_job_logs,
        max_memory=max_memory_of(settings),
        presence=settings.rescue_on_disconnect,
        name=settings.hostname,
        pod=settings.pod,
        git_sha=settings.git_sha,
        logs=configuration(),
        traces=settings.traces,
        crash_at=settings.crash_at,
    )


def keep(
    orders: Orders,
    *,
    executors: int = 1,
    http: str | None = None,
    wanted_revision: str | None = None,
    crash_at: str | None = None,
) -> int:
    """Keep so many executors at work until told to stop, or until there is nothing left to do; the exit code."""
    arm_from_settings(crash_at)
    log.info(
        "keeper_started",
        name=orders.name,
        modules=list(orders.modules),
        kinds=list(orders.kinds) or "all",
        queues=list(orders.queues),
        database=place_of(orders.url),
        executors=executors,
        concurrency=orders.concurrency,
    )
    # Not `asyncio.run`: that waits for every thread, and one may hang in the name lookup of a database that is gone.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_keep(orders, executors, http, wanted_revision))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _keep(orders: Orders, executors: int, http: str | None, wanted_revision: str | None) -> int:
    return await Keeper(orders, executors=executors, http=http, wanted_revision=wanted_revision).run()


def work(
    url: str, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool = False, crash_at: str | None = None
) -> None:
    """Run these kinds in this very process, without a keeper, until told to stop."""
    arm_from_settings(crash_at)
    asyncio.run(_work(url, kinds, options, until_empty=until_empty))


async def _work(url: str, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool) -> None:
    """SIGTERM and SIGINT let the worker finish what it has."""
    worker = Worker(url, kinds, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run(until_empty=until_empty)
