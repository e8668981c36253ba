"""A worker as a program: a keeper and its executors. Called by: `holdfast worker run`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.crashpoints import arm_from_settings
from holdfast.database.pool import place_of
from holdfast.settings import Settings
from holdfast.telemetry.log import configuration, log
from holdfast.worker.keeper.keeper import Keeper
from holdfast.worker.keeper.messages import ExecutorConfig, Mode
from holdfast.worker.options import WorkerOptions


def executor_config(
    settings: Settings,
    url: str,
    modules: Sequence[str],
    *,
    kinds: Sequence[str] = (),
    queues: Sequence[str] = ("default",),
    concurrency: int = 10,
    mode: Mode = "serve",
) -> ExecutorConfig:
    """What the executors will be told, from the settings and the command line."""
    return ExecutorConfig(
        url=url,
        modules=tuple(modules),
        kinds=tuple(kinds),
        mode=mode,
        options=WorkerOptions.from_settings(
            settings, runner="executor", queues=tuple(queues), concurrency=1 if mode == "once" else concurrency
        ),
        logs=configuration(),
        traces=settings.traces,
        crash_at=settings.crash_at,
    )


def keep(
    orders: ExecutorConfig,
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
        name=orders.options.name,
        modules=list(orders.modules),
        kinds=list(orders.kinds) or "all",
        queues=list(orders.options.queues),
        database=place_of(orders.url),
        executors=executors,
        concurrency=orders.options.concurrency,
    )
    # Not `asyncio.run`: that waits for every thread, and one may hang in the name lookup of a database that is gone.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_keep(orders, executors, http, wanted_revision))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _keep(orders: ExecutorConfig, executors: int, http: str | None, wanted_revision: str | None) -> int:
    return await Keeper(orders, executors=executors, http=http, wanted_revision=wanted_revision).run()
