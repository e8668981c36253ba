"""The ways to run a worker in the process schedules, one function each. Called by: the fork server, in its children."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from proof import handlers
from proof.forks import Order, seconds

from holdfast.apps.worker import work
from holdfast.telemetry.log import configure
from holdfast.worker.kinds import registered
from holdfast.worker.options import WorkerOptions


def run(order: Order) -> int:
    """Be a worker; the exit code of its process."""
    configure(json=True)
    handlers.remember(Path(order.folder))
    for module in order.modules:
        importlib.import_module(module)
    return MODES[order.mode](order)


def options_of(order: Order) -> WorkerOptions:
    return WorkerOptions(
        concurrency=order.concurrency,
        beat=seconds(order.beat),
        lease=seconds(order.lease),
        grace=seconds(order.grace),
        name=order.name,
    )


def as_worker(order: Order) -> int:
    """Everything in one process: heartbeat thread, loop, handlers."""
    kinds = [kind for name, kind in registered().items() if name in (order.kinds or registered())]
    work(order.url, kinds, options_of(order), crash_at=order.crash_at)
    return 0


MODES: dict[str, Callable[[Order], int]] = {"worker": as_worker}
