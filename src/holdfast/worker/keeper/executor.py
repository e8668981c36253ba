"""The process in which handlers run: `python -m holdfast.worker.keeper.executor`. Started by: the keeper only.

It imports the user's modules, runs a worker, and handles the keeper's messages. It leaves signals to the keeper, and ends with
it: on Linux the kernel kills it, everywhere the end of the channel does.
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
from dataclasses import asdict, replace
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
from holdfast.worker.exit_causes import run_or_exit
from holdfast.worker.heartbeat import SAFE_SHARE
from holdfast.worker.keeper.messages import FIGURES, ExecutorConfig, Message, MessageChannel
from holdfast.worker.keeper.shared_page import LOOP_RAN_AT, SharedLease, SharedPage
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.modules import kinds_of
from holdfast.worker.options import WorkerOptions

NOTE_EVERY = 0.5  # seconds between two notes that the event loop runs


def main(keeper: int, channel_end: int, page: int) -> int:
    """Receive the configuration, import the kinds, run the worker. Returns the exit code."""
    die_with(keeper, signal.SIGKILL)
    _leave_signals_to_the_keeper()
    for descriptor in (channel_end, page):
        os.set_inheritable(descriptor, False)  # a process that a handler starts must not keep the channel open
    channel = MessageChannel(socket.socket(fileno=channel_end))
    messages = channel.receive()
    config = ExecutorConfig.from_message(next(messages))
    if config.logs is not None:
        configure(**config.logs)
    arm_from_settings(config.crash_at)
    try:
        trace.export_to(config.traces)
        kinds = _import_kinds(config)
        channel.send({"type": "ready", "kinds": sorted(kind.kind for kind in kinds), "failing": _failing(kinds)})
        run_or_exit(_work(config, kinds, channel, messages, SharedPage(page)))
        trace.flush()
    except (psycopg.OperationalError, PoolTimeout) as error:  # first: `CannotConnect` is both
        channel.send({"type": "no_database", "error": str(error).strip()})
        return 1
    except HoldfastError as error:
        channel.send({"type": "cannot_start", "error": str(error)})
        return 1
    return 0


def _leave_signals_to_the_keeper() -> None:
    """Ctrl-C and a signal to the whole group are for the keeper, which sends `stop`. Not `SIG_IGN`: the processes that a
    handler starts would inherit it, and could not be ended by a signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _import_kinds(config: ExecutorConfig) -> list[Job[..., Any]]:
    try:
        kinds = kinds_of(config.modules, config.kinds)
    except UsageError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise
    if not kinds:
        raise UsageError(f"no kinds in {', '.join(config.modules)}; decorate a function with @holdfast.job")
    return kinds


def _failing(kinds: Sequence[Job[..., Any]]) -> list[str]:
    """The kinds whose jobs the keeper must fail if it has to kill this process."""
    return [kind.kind for kind in kinds if kind.policy.on_shutdown == "fail"]


async def _work(
    config: ExecutorConfig,
    kinds: Sequence[Job[..., Any]],
    channel: MessageChannel,
    messages: Iterator[Message],
    page: SharedPage,
) -> None:
    lease = SharedLease(config.options.lease.total_seconds() * SAFE_SHARE, page)
    worker = Worker(config.url, kinds, _options(config), worker_id=config.worker_id, lease=lease)
    loop = asyncio.get_running_loop()
    arguments = (channel, messages, worker, lease, loop)
    threading.Thread(target=_handle_messages, args=arguments, name="holdfast-keeper", daemon=True).start()
    noting = asyncio.create_task(_note_that_the_loop_runs(page))
    try:
        await worker.run(until_empty=config.mode != "serve")
    finally:
        noting.cancel()
    channel.send({"type": "ended", **asdict(worker.counts)})


def _options(config: ExecutorConfig) -> WorkerOptions:
    """The configured options. The keeper's session shows the presence of all its executors, so they need none."""
    options = replace(config.options, runner="executor", presence=False)
    return replace(options, concurrency=1, most=1) if config.mode == "once" else options


def _handle_messages(
    channel: MessageChannel, messages: Iterator[Message], worker: Worker, lease: SharedLease, loop: asyncio.AbstractEventLoop
) -> None:
    """In a thread: a handler that blocks the event loop can still read `ctx.stopping`."""
    for message in messages:
        if message["type"] == "figures":
            channel.send({**FIGURES, "families": dump(REGISTRY)})
        elif message["type"] == "stop":
            lease.stopping = True
            if not loop.is_closed():
                loop.call_soon_threadsafe(worker.stop)
    os.kill(os.getpid(), signal.SIGKILL)  # the keeper is gone


async def _note_that_the_loop_runs(page: SharedPage) -> None:
    while True:
        page.times[LOOP_RAN_AT] = time.monotonic()
        await asyncio.sleep(NOTE_EVERY)


if __name__ == "__main__":
    exit_process(main(*map(int, sys.argv[1:4])))
