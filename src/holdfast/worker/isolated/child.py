"""A process for one job at a time: `python -m holdfast.worker.isolated.child`. Started by: `isolated/parent.py` only.

It is a worker with one lane that claims nothing: it receives an attempt, runs it on its own connections, writes the fenced end,
and reports it. Its parent renews the lease, and kills it if it does not stop. It ends with its parent: on Linux the kernel
kills it, everywhere the end of the channel does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.crashpoints import arm_from_settings
from holdfast.database.launch import die_with
from holdfast.jobs.finish import complete_plain
from holdfast.jobs.model import AttemptId, Claim, JobId
from holdfast.jobs.outcome import COMPLETED, End
from holdfast.jobs.states import State
from holdfast.telemetry import trace
from holdfast.telemetry.log import configure, log_by_default
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.threads import at_work
from holdfast.worker.attempt import Attempts, Environment
from holdfast.worker.context import Lease
from holdfast.worker.exit_causes import run_or_exit
from holdfast.worker.isolated.memory import with_memory_limit
from holdfast.worker.isolated.priority import lower_priority
from holdfast.worker.isolated.transfer import claim_from_json, load_kind
from holdfast.worker.kinds import Job
from holdfast.worker.lanes import Lanes
from holdfast.worker.log_buffer import LogBuffer
from holdfast.worker.outcome_writer import OutcomeWriter
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.interface import Takes

Message = dict[str, Any]
FLUSH_TIMEOUT = 1.0  # seconds


def main(parent: int, channel_end: int) -> None:
    """Receive the configuration, then run attempts until the channel ends."""
    die_with(parent, signal.SIGKILL)
    _prefer_for_oom_kill()
    os.set_inheritable(channel_end, False)  # a process that a handler starts must not keep the channel open
    channel = socket.socket(fileno=channel_end)
    messages = _messages(channel)
    hello = next(messages)
    lower_priority(hello["nice"])  # before there are threads: each has its own
    sys.path[:] = hello["path"]
    if hello["log"] is not None:
        configure(**hello["log"])
    log_by_default()
    trace.export_to(hello["traces"])
    arm_from_settings(hello["crash_at"])
    run_or_exit(IsolatedWorker(hello["url"], hello["name"], channel, keep_logs=hello["keep_logs"]).serve(messages))


class OneConnection(Direct):
    """For one attempt at a time the pool is enough: batches get no connection of their own."""

    async def begin(self, claim: Claim) -> None:
        """The parent has written it already."""

    async def complete(self, claims: Sequence[Claim], results: Sequence[str | None]) -> set[JobId]:
        async with self.connection() as conn:
            return await complete_plain(conn, claims, results)


class IsolatedWorker:
    """A worker with one lane, and the channel to the parent."""

    def __init__(self, url: str, name: str, channel: socket.socket, *, keep_logs: bool) -> None:
        self._socket = channel
        self._idle = asyncio.Event()
        self._lease = Lease(0.0)
        self._transport = OneConnection(url)
        self._kinds: dict[str, Job[..., Any]] = {}
        self._writer = OutcomeWriter(self._transport, lambda kind: self._kinds[kind].policy.retry, self._on_end)
        self._log_buffer = LogBuffer(self._transport) if keep_logs else None
        self._lanes = Lanes(self._kinds, 1, poll_lanes=0, on_idle=self._idle.set)
        self._attempts = Attempts(
            Environment(
                name, self._kinds, self._transport, self._lease, client=self._transport.client, log_buffer=self._log_buffer
            ),
            self._lanes,
            Prefetch(self._lanes, Takes({}, ()), self._lease),  # no next step of a chain is claimed: it may belong elsewhere
            self._writer,
        )
        self._attempt: AttemptId | None = None
        self._wrote: End | None = None
        self._orders: asyncio.Queue[Message] = asyncio.Queue()

    async def serve(self, messages: Iterator[Message]) -> None:
        loop = asyncio.get_running_loop()
        await self._transport.open()
        if self._log_buffer is not None:
            self._log_buffer.open()
        threading.Thread(target=self._handle_messages, args=(messages, loop), name="holdfast-parent", daemon=True).start()
        lane = asyncio.create_task(self._attempts.run_lane())
        self._send({"type": "ready"})
        while not lane.done():
            await self._run(await self._orders.get())
        await lane  # a lane that ended has failed: raise its error

    async def _run(self, order: Message) -> None:
        """One attempt, from the order to the message that its end is written."""
        claim = claim_from_json(order["claim"])
        self._send({"type": "begun"})
        try:
            kind, most = load_kind(order["module"], order["file"], claim.kind), order["max_memory"]
            self._kinds[claim.kind] = kind if most is None else with_memory_limit(kind, most)
        except Exception as error:  # the user's module: its error is the reason
            self._send({"type": "cannot", "error": f"{type(error).__name__}: {error}"})
            return
        self._send({"type": "running"})
        self._attempt, self._wrote = claim.attempt_id, None
        before = self._writer.completed
        self._idle.clear()
        self._lanes.hand_out([claim])
        await self._idle.wait()
        await self._attempts.completions.flush()
        self._attempt = None
        await _send_spans()
        wrote = COMPLETED if self._writer.completed > before else self._wrote
        self._send(
            {
                "type": "ended",
                "move": None if wrote is None else str(wrote.move),
                "refused": _take_refusals(),
                "back": _back(self._wrote),
                # A thread that goes on, or memory that ran out, is a reason not to use this process again.
                "clean": at_work() == 0 and (wrote is None or wrote.cause != "oom"),
            }
        )

    def _on_end(self, end: End) -> None:
        self._wrote = end

    def _handle_messages(self, messages: Iterator[Message], loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: also while a handler blocks the event loop, the end of the parent must end this process."""
        for message in messages:
            match message:
                case {"type": "lease", "until": until}:
                    self._lease.extend(until)
                case {"type": "run", "until": until}:
                    self._lease.extend(until)
                    loop.call_soon_threadsafe(self._orders.put_nowait, message)
                case {"type": "stopping"}:
                    self._lease.stopping = True
                case {"type": "stop", "reason": reason}:
                    loop.call_soon_threadsafe(self._stop, reason)
                case {"type": "lose"}:
                    loop.call_soon_threadsafe(self._lose)
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self, reason: str) -> None:
        if self._attempt is not None:
            self._lanes.stop(self._attempt, reason)

    def _lose(self) -> None:
        if self._attempt is not None:
            self._lanes.lose(self._attempt)

    def _send(self, message: Message) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


async def _send_spans() -> None:
    """Before the end is reported: after it, this process may be killed at any time. An unreachable collector delays it by 1
    s."""
    if trace.configuration() is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(trace.flush), FLUSH_TIMEOUT)


def _take_refusals() -> list[str]:
    """The refused writes since the last call, for the parent's metrics. The parent counts those of the heartbeat itself."""
    samples = [one for family in stale_writebacks.collect() for one in family.samples if one.name.endswith("_total")]
    stale_writebacks.clear()
    counted = {one.labels["operation"]: int(one.value) for one in samples if one.labels["operation"] != "heartbeat"}
    return [operation for operation, count in counted.items() for _ in range(count)]


def _back(end: End | None) -> tuple[str, float] | None:
    """The state in which the job waits, and for how long, if it will run again."""
    if end is None or end.delay is None or end.state not in (State.PENDING, State.SUBMITTED):
        return None
    return str(end.state), end.delay.total_seconds()


def _messages(channel: socket.socket) -> Iterator[Message]:
    with contextlib.suppress(OSError):
        for text in channel.makefile("rb"):
            yield json.loads(text)


def _prefer_for_oom_kill() -> None:
    """When memory runs out, the kernel should kill this process, and not the parent with all its jobs."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
