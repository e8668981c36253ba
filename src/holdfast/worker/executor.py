"""The process in which handlers run: `python -m holdfast.worker.executor`. Started by: the keeper, and by nobody else.

It imports the user's modules, runs a worker, and does what its keeper says. It leaves signals to the keeper, and ends with
it: the kernel sees to that on Linux, and the end of the line between them everywhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout

from holdfast.crashpoints import arm_from_settings
from holdfast.database.launch import die_with
from holdfast.errors import HoldfastError, UsageError
from holdfast.process_exit import exit_process
from holdfast.telemetry import trace
from holdfast.telemetry.gathered import dump
from holdfast.telemetry.log import configure
from holdfast.telemetry.metrics import REGISTRY
from holdfast.worker.deaths import run_or_die
from holdfast.worker.heartbeat import SAFE_SHARE
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.modules import kinds_of
from holdfast.worker.noticeboard import TURNED_AT, KeptLease, Noticeboard
from holdfast.worker.options import WorkerOptions
from holdfast.worker.orders import FIGURES, Line, Message, Orders

TURN = 0.5  # seconds between two notes that the event loop still turns


def main(keeper: int, line_end: int, board: int) -> int:
    """Hear the orders, import the kinds, work; the exit code."""
    die_with(keeper, signal.SIGKILL)
    _leave_signals_to_the_keeper()
    for descriptor in (line_end, board):
        os.set_inheritable(descriptor, False)  # what a handler starts must not keep the line open after us
    line = Line(socket.socket(fileno=line_end))
    heard = line.hear()
    orders = Orders.from_message(next(heard))
    if orders.logs is not None:
        configure(**orders.logs)
    arm_from_settings(orders.crash_at)
    try:
        trace.export_to(orders.traces)
        kinds = _import_kinds(orders)
        line.say({"say": "ready", "kinds": sorted(kind.kind for kind in kinds), "failing": _failing(kinds)})
        run_or_die(_work(orders, kinds, line, heard, Noticeboard(board)))
        trace.flush()
    except HoldfastError as error:
        line.say({"say": "cannot_start", "error": str(error)})
        return 1
    except (psycopg.OperationalError, PoolTimeout) as error:
        line.say({"say": "no_database", "error": str(error).strip()})
        return 1
    return 0


def _leave_signals_to_the_keeper() -> None:
    """Ctrl-C and whoever signals a whole group mean the keeper, which tells us. Not `SIG_IGN`: what a handler starts would
    inherit that, and could not be ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _import_kinds(orders: Orders) -> list[Job[..., Any]]:
    try:
        kinds = kinds_of(orders.modules, orders.kinds)
    except UsageError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise
    if not kinds:
        raise UsageError(f"no kinds in {', '.join(orders.modules)}; decorate a function with @holdfast.job")
    return kinds


def _failing(kinds: Sequence[Job[..., Any]]) -> list[str]:
    """The kinds that the keeper must fail if it has to cut us off."""
    return [kind.kind for kind in kinds if kind.policy.on_shutdown == "fail"]


async def _work(
    orders: Orders, kinds: Sequence[Job[..., Any]], line: Line, heard: Iterator[Message], board: Noticeboard
) -> None:
    lease = KeptLease(orders.lease * SAFE_SHARE, board)
    worker = Worker(orders.url, kinds, _options(orders), worker_id=orders.worker_id, lease=lease)
    loop = asyncio.get_running_loop()
    threading.Thread(target=_obey, args=(line, heard, worker, lease, loop), name="holdfast-keeper", daemon=True).start()
    turning = asyncio.create_task(_turn(board))
    try:
        await worker.run(until_empty=orders.mode != "serve")
    finally:
        turning.cancel()
    line.say({"say": "ended", **asdict(worker.tally)})


def _options(orders: Orders) -> WorkerOptions:
    return WorkerOptions(
        queues=orders.queues,
        concurrency=1 if orders.mode == "once" else orders.concurrency,
        beat=timedelta(seconds=orders.beat),
        poll=None if orders.poll is None else timedelta(seconds=orders.poll),
        lease=timedelta(seconds=orders.lease),
        grace=timedelta(seconds=orders.grace),
        name=orders.name,
        pod=orders.pod,
        git_sha=orders.git_sha,
        runner="executor",
        most=1 if orders.mode == "once" else None,
        keep_logs=orders.keep_logs,
        max_memory=orders.max_memory,
    )


def _obey(line: Line, heard: Iterator[Message], worker: Worker, lease: KeptLease, loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: a handler that blocks the event loop can still ask its context whether it should come to an end."""
    for message in heard:
        if message["say"] == "figures":
            line.say({**FIGURES, "families": dump(REGISTRY)})
        elif message["say"] == "stop":
            lease.stopping = True
            if not loop.is_closed():
                loop.call_soon_threadsafe(worker.stop)
    os.kill(os.getpid(), signal.SIGKILL)  # the keeper is gone


async def _turn(board: Noticeboard) -> None:
    while True:
        board.times[TURNED_AT] = time.monotonic()
        await asyncio.sleep(TURN)


if __name__ == "__main__":
    exit_process(main(*map(int, sys.argv[1:4])))
