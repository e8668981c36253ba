"""The ways to run a worker in the process schedules, one function each. Called by: the fork server, in its children."""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from proof.processes import handlers
from proof.processes.fork_server import Order, seconds
from proof.processes.spare import use_a_spare

from holdfast.apps.in_process import lifespan
from holdfast.apps.worker import keep
from holdfast.crashpoints import POINTS, arm_from_settings
from holdfast.telemetry.log import configure
from holdfast.worker.keeper.messages import ExecutorConfig
from holdfast.worker.kinds import Job, registered
from holdfast.worker.options import WorkerOptions
from holdfast.worker.without_keeper import work


def run(order: Order) -> int:
    """Be a worker; the exit code of its process."""
    configure(json=True)
    handlers.remember(Path(order.folder))
    for module in order.modules:
        importlib.import_module(module)
    if order.warm:
        use_a_spare(order.modules)
    return MODES[order.mode](order)


def options_of(order: Order) -> WorkerOptions:
    return WorkerOptions(
        concurrency=order.concurrency,
        beat=seconds(order.beat),
        lease=seconds(order.lease),
        grace=seconds(order.grace),
        name=order.name,
    )


def kinds_of(order: Order) -> list[Job[..., Any]]:
    """The kinds it is to run, all in the same version."""
    known = {name: kind for name, kind in registered().items() if name in (order.kinds or registered())}
    return [Job(name, kind.function, replace(kind.policy, version=order.version)) for name, kind in known.items()]


def as_worker(order: Order) -> int:
    """Everything in one process: heartbeat thread, loop, handlers."""
    work(order.url, kinds_of(order), options_of(order), crash_at=order.crash_at)
    return 0


def in_process(order: Order) -> int:
    """Inside a web application, as its lifespan."""
    arm_from_settings(order.crash_at)

    async def serve() -> None:
        told_to_stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
        async with lifespan(order.url, kinds=kinds_of(order), options=options_of(order))(None):
            await told_to_stop.wait()

    asyncio.run(serve())
    return 0


def as_keeper(order: Order) -> int:
    """A keeper and one executor: the crash point is the executor's, and only its first incarnation dies there."""
    orders = ExecutorConfig(
        order.url,
        tuple(order.modules),
        kinds=tuple(order.kinds),
        options=replace(options_of(order), name=order.name),
        logs={"json": True},
        crash_at=order.crash_at,
    )
    return keep(orders)


# Where a process that runs jobs can be made to die. The others are of schedulers, keepers and the like.
OF_WORKERS = ("claim.", "lock.", "run.", "hb.", "submit.", "poll.", "publish.", "complete.", "unlock.", "reap.")
WORKER_POINTS = tuple(point for point in POINTS if point.startswith(OF_WORKERS))
MODES: dict[str, Callable[[Order], int]] = {"worker": as_worker, "in process": in_process, "keeper": as_keeper}
