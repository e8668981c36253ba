"""A process for one job at a time: `python -m holdfast.worker.inside`. Started by: `isolated.py`, and by nobody else.

It is a worker with one lane that claims nothing: it is handed an attempt, runs it on connections of its own, writes its own
fenced end, and says so. Its parent keeps the lease, and ends it when it will not stop by itself. It ends with its parent:
the kernel sees to that on Linux, and the end of the line between them everywhere.
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
from holdfast.telemetry.log import configure
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker.context import Lease
from holdfast.worker.deaths import run_or_die
from holdfast.worker.direct import Direct
from holdfast.worker.ends import Ends
from holdfast.worker.handover import claim_from, load
from holdfast.worker.kinds import Job
from holdfast.worker.lanes import Lanes
from holdfast.worker.logbook import Logbook
from holdfast.worker.memory import confined
from holdfast.worker.threads import at_work
from holdfast.worker.transport import Takes

Message = dict[str, Any]
MOMENT = 1.0  # seconds


def main(parent: int, line_end: int) -> None:
    """Hear who we are, then run what we are handed until the line ends."""
    die_with(parent, signal.SIGKILL)
    _be_the_first_to_go()
    os.set_inheritable(line_end, False)  # what a handler starts must not keep the line open after us
    line = socket.socket(fileno=line_end)
    heard = _messages(line)
    hello = next(heard)
    sys.path[:] = hello["path"]
    if hello["log"] is not None:
        configure(**hello["log"])
    trace.export_to(hello["traces"])
    arm_from_settings(hello["crash_at"])
    run_or_die(Inside(hello["url"], hello["name"], line, keep_logs=hello["keep_logs"]).serve(heard))


class OneConnection(Direct):
    """For one attempt at a time the pool is enough: no connection is kept for batches beside it."""

    async def begin(self, claim: Claim) -> None:
        """Its parent has written that before it was handed over."""

    async def complete(self, claims: Sequence[Claim], results: Sequence[str | None]) -> set[JobId]:
        async with self.connection() as conn:
            return await complete_plain(conn, claims, results)


class Inside:
    """One lane, and the line to the parent."""

    def __init__(self, url: str, name: str, line: socket.socket, *, keep_logs: bool) -> None:
        self._line = line
        self._idle = asyncio.Event()
        self._lease = Lease(0.0)
        self._transport = OneConnection(url)
        self._kinds: dict[str, Job[..., Any]] = {}
        self._ends = Ends(self._transport, lambda kind: self._kinds[kind].policy.retry, self._on_end)
        self._logbook = Logbook(self._transport) if keep_logs else None
        self._lanes = Lanes(
            self._kinds,
            self._transport,
            self._ends,
            self._lease,
            count=1,
            looks=0,
            name=name,
            takes=lambda: Takes({}, ()),  # no step of a chain is taken along: it may belong elsewhere
            hungry=self._idle.set,
            client=self._transport.client,
            logbook=self._logbook,
        )
        self._attempt: AttemptId | None = None
        self._wrote: End | None = None
        self._orders: asyncio.Queue[Message] = asyncio.Queue()

    async def serve(self, heard: Iterator[Message]) -> None:
        loop = asyncio.get_running_loop()
        await self._transport.open()
        if self._logbook is not None:
            self._logbook.open()
        threading.Thread(target=self._obey, args=(heard, loop), name="holdfast-parent", daemon=True).start()
        (lane,) = (asyncio.create_task(one) for one in self._lanes.all())
        self._say({"say": "ready"})
        while not lane.done():
            await self._run(await self._orders.get())
        await lane  # a lane that ended has failed: raise what it raised

    async def _run(self, order: Message) -> None:
        """One attempt, from the order to the word that its end is written."""
        claim = claim_from(order["claim"])
        self._say({"say": "begun"})
        try:
            kind, most = load(order["module"], order["file"], claim.kind), order["max_memory"]
            self._kinds[claim.kind] = kind if most is None else confined(kind, most)
        except Exception as error:  # foreign code: what its module raises is the reason
            self._say({"say": "cannot", "error": f"{type(error).__name__}: {error}"})
            return
        self._say({"say": "running"})
        self._attempt, self._wrote = claim.attempt_id, None
        before = self._ends.completed
        self._idle.clear()
        self._lanes.hand_out([claim])
        await self._idle.wait()
        await self._ends.flush()
        self._attempt = None
        await _send_spans()
        wrote = COMPLETED if self._ends.completed > before else self._wrote
        self._say(
            {
                "say": "ended",
                "move": None if wrote is None else str(wrote.move),
                "refused": _take_refusals(),
                "back": _back(self._wrote),
                # A thread that goes on, or memory that ran out, is a reason not to use this process again.
                "clean": at_work() == 0 and (wrote is None or wrote.cause != "oom"),
            }
        )

    def _on_end(self, end: End) -> None:
        self._wrote = end

    def _obey(self, heard: Iterator[Message], loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: a handler that blocks the event loop must not keep us from hearing that our parent is gone."""
        for message in heard:
            match message:
                case {"say": "lease", "until": until}:
                    self._lease.extend(until)
                case {"say": "run", "until": until}:
                    self._lease.extend(until)
                    loop.call_soon_threadsafe(self._orders.put_nowait, message)
                case {"say": "stopping"}:
                    self._lease.stopping = True
                case {"say": "stop", "reason": reason}:
                    loop.call_soon_threadsafe(self._stop, reason)
                case {"say": "lose"}:
                    loop.call_soon_threadsafe(self._lose)
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self, reason: str) -> None:
        if self._attempt is not None:
            self._lanes.stop(self._attempt, reason)

    def _lose(self) -> None:
        if self._attempt is not None:
            self._lanes.lose(self._attempt)

    def _say(self, message: Message) -> None:
        self._line.sendall(json.dumps(message).encode() + b"\n")


async def _send_spans() -> None:
    """Before the end is told: after it, this process may be killed at any time. A collector that is away costs a moment."""
    if trace.configuration() is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(trace.flush), MOMENT)


def _take_refusals() -> list[str]:
    """The refused writes since the last time, for the parent, whose metrics are looked at. It counts the heartbeat's itself."""
    samples = [one for family in stale_writebacks.collect() for one in family.samples if one.name.endswith("_total")]
    stale_writebacks.clear()
    counted = {one.labels["operation"]: int(one.value) for one in samples if one.labels["operation"] != "heartbeat"}
    return [operation for operation, count in counted.items() for _ in range(count)]


def _back(end: End | None) -> tuple[str, float] | None:
    """Where the job waits, and for how long, if it is to come back."""
    if end is None or end.delay is None or end.state not in (State.PENDING, State.SUBMITTED):
        return None
    return str(end.state), end.delay.total_seconds()


def _messages(line: socket.socket) -> Iterator[Message]:
    with contextlib.suppress(OSError):
        for text in line.makefile("rb"):
            yield json.loads(text)


def _be_the_first_to_go() -> None:
    """When the memory runs out, the kernel should take us and not the parent with everything else in it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
