"""Run a handler in a child process, so that its crash does not affect the worker. Called by: the lanes.

For kinds with `run_in="process"`, and for any job that must run alone because a process that it shared has died. The child
(`child.py`) runs the attempt and writes its end. The parent renews the lease, passes on cancellation and
loss, kills a handler that does not stop, and releases exactly the job of a child that dies, with the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.crashpoints import from_settings
from holdfast.database.pool import is_permanent
from holdfast.errors import ClaimLost
from holdfast.jobs.given import a_memory, size_text
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import End, Snooze, decide
from holdfast.jobs.renew import WorkerInfo
from holdfast.jobs.states import Move, State
from holdfast.telemetry import trace
from holdfast.telemetry.log import configuration, log
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker import spawn
from holdfast.worker.context import Lease
from holdfast.worker.exit_causes import ExitCause, OomCounter, exit_cause
from holdfast.worker.isolated.transfer import claim_to_json, location_of
from holdfast.worker.kinds import Job
from holdfast.worker.outcome_writer import OutcomeWriter, report_stale_write
from holdfast.worker.retries import retry_forever
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.interface import UNREACHABLE

STOP_TIMEOUT = 2.0  # seconds between asking a handler to stop and killing its process; also beyond max_runtime
NO_PROCESS = timedelta(seconds=5)  # until the next attempt if no process could be started
KEPT_IDLE = 60.0  # seconds that an idle child is kept for the next job

Message = dict[str, Any]


class ChildDied(Exception):
    """The process ended before it reported the end of its attempt."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the process ended with {returncode}")
        self.returncode = returncode


class ChildProcess:
    """One child process. It runs one attempt at a time."""

    def __init__(self, hello: Message) -> None:
        self.nice: int = hello["nice"]
        ours, theirs = socket.socketpair()
        self._hello, self._ours = hello, ours
        self._process = spawn.start_module("holdfast.worker.isolated.child", theirs.fileno())
        theirs.close()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(self) -> None:
        """Wait until it is ready for an attempt."""
        if self._reader is not None:
            return
        self._reader, self._writer = await asyncio.open_connection(sock=self._ours)
        self.send(self._hello)
        await self.receive()

    async def begin(self, order: Message) -> None:
        """Send it an attempt. `ChildDied`: it ended before the attempt began."""
        assert self._writer is not None
        self.send(order)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        await self.receive()

    def send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def kill_in(self, seconds: float) -> None:
        """Kill the process unless its attempt has ended by then."""
        self.call_in(seconds, self.kill)

    def call_in(self, seconds: float, end: Callable[[], None]) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, end)

    def cancel_kill(self) -> None:
        """Cancel a planned kill."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def kill(self) -> None:
        """Kill it and the processes that its handlers started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def reap(self) -> int:
        """Kill it unless it has ended, and reap it. Returns its exit status."""
        self.cancel_kill()
        if self._reader is not None and self._reader.at_eof():  # it is just ending: its own status has the cause
            await asyncio.to_thread(self._wait, STOP_TIMEOUT)
        self.kill()
        await asyncio.to_thread(self._process.wait)
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        else:
            self._ours.close()
        return self._process.wait()

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    async def receive(self) -> Message:
        """Its next message; `ChildDied` if it has ended."""
        assert self._reader is not None
        try:
            text = await self._reader.readline()
        except ConnectionError:
            text = b""
        if not text:
            raise ChildDied(await self.reap())
        message: Message = json.loads(text)
        return message


class IsolatedAttempt:
    """An attempt in a child process, as the lanes see it: it can be stopped or marked as lost."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.stop_reason: str | None = None
        self.is_lost = False
        self.is_overdue = False

    def ask_to_stop(self, reason: str) -> None:
        self.stop_reason = reason
        self.child.send({"type": "stop", "reason": reason})
        self.child.kill_in(STOP_TIMEOUT)

    def lose(self) -> None:
        self.is_lost = True
        self.child.send({"type": "lose"})
        self.child.kill_in(STOP_TIMEOUT)

    def overrun(self) -> None:
        """It ran longer than max_runtime, and its own timeout did not stop it."""
        self.is_overdue = True
        self.child.kill()


class Isolated:
    """The child processes of one worker."""

    def __init__(
        self,
        url: str,
        transport: Direct,
        worker: WorkerInfo,
        writer: OutcomeWriter,
        lease: Lease,
        nudge: Callable[[], None],
        *,
        keep_logs: bool = True,
        max_memory: int | None = None,
    ) -> None:
        self._url, self._transport, self._worker, self._writer, self._lease = url, transport, worker, writer, lease
        self._nudge, self._keep_logs, self._max_memory = nudge, keep_logs, max_memory
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._reaping: set[asyncio.Task[int]] = set()
        self._oom = OomCounter()
        self._crash_at = from_settings()

    def takes(self, kind: Job[..., Any], claim: Claim) -> bool:
        """Whether this attempt must run in a child process."""
        if not claim.alone and kind.policy.run_in != "process":
            return False
        if location_of(kind) is not None:
            return True
        log.warning("job_not_isolated", job_id=claim.id, kind=claim.kind, error="no other process can import its function")
        return False

    async def run(
        self, kind: Job[..., Any], claim: Claim, on_started: Callable[[IsolatedAttempt], None]
    ) -> tuple[End | None, str | None]:
        """Run one attempt. Returns an `End` if the child could not write it, else None and how the attempt ended: the child has
        written the end, or another worker has the job."""
        try:
            child = await self._begin(kind, claim)
        except (ChildDied, OSError) as error:
            log.error("job_process_not_started", job_id=claim.id, kind=claim.kind, error=str(error))
            return decide(claim, Snooze(NO_PROCESS, f"no process could be started for it: {error}")), None
        attempt = IsolatedAttempt(child)
        on_started(attempt)
        try:
            reply = await self._receive_end(claim, attempt)
        except ChildDied as died:
            return await self._after_death(kind, claim, attempt, died.returncode), None if attempt.is_lost else "crash"
        except BaseException:  # the worker stops and releases the job itself: no process may still run it then
            await asyncio.shield(child.reap())
            raise
        finally:
            self._busy.discard(child)
        child.cancel_kill()
        if reply["type"] == "cannot":
            await self._put_back(child, clean=True)
            return decide(claim, RuntimeError(f"its process could not load it: {reply['error']}"), kind.policy.retry), None
        self._writer.record_written(claim, reply["move"], back=_back(reply["back"]))
        self._transport.changed()  # the child wrote it, and does not listen for watchers
        for operation in reply["refused"]:
            stale_writebacks.labels(operation).inc()
        await self._put_back(child, clean=reply["clean"] and attempt.stop_reason is None)
        return None, reply["move"]

    def renewed(self) -> None:
        """The lease was renewed: tell the children."""
        for child in self._busy:
            child.send({"type": "lease", "until": self._lease.until})

    def stopping(self) -> None:
        """The worker stops: tell the children, for `ctx.stopping`."""
        for child in self._busy:
            child.send({"type": "stopping"})

    async def close(self) -> None:
        """End the idle children. Those that run an attempt end with their lanes."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*self._reaping, *(child.reap() for child in idle))

    async def _begin(self, kind: Job[..., Any], claim: Claim) -> ChildProcess:
        """A child that has begun this attempt: an idle one, or a new one."""
        location = location_of(kind)
        assert location is not None
        order = {
            "type": "run",
            "claim": claim_to_json(claim),
            "module": location.module,
            "file": location.file,
            "until": self._lease.until,
        }
        order["max_memory"] = self._memory_of(kind)
        nice = kind.policy.nice
        if claim.alone and claim.crashes + 1 >= claim.max_crashes:
            return await self._begin_in(self._new_child(nice), order)  # its last try: nothing of other jobs may be in there
        while (child := self._take_idle(nice)) is not None:
            with contextlib.suppress(ChildDied):  # it ended while it was idle
                return await self._begin_in(child, order)
        return await self._begin_in(self._new_child(nice), order)

    def _take_idle(self, nice: int) -> ChildProcess | None:
        """An idle child of this priority: a process cannot raise its own again."""
        child = next((one for one in reversed(self._idle) if one.nice == nice), None)
        if child is not None:
            self._idle.remove(child)
            child.cancel_kill()
        return child

    def _memory_of(self, kind: Job[..., Any]) -> int | None:
        """How many bytes its process may allocate."""
        limit = kind.policy.max_memory
        return self._max_memory if limit is None else a_memory("max_memory", limit)

    def _new_child(self, nice: int) -> ChildProcess:
        crash_at, self._crash_at = self._crash_at, None  # once, as in any process: its successor must not crash
        hello = {"url": self._url, "name": self._worker.name, "path": sys.path, "keep_logs": self._keep_logs, "nice": nice}
        return ChildProcess({**hello, "log": configuration(), "traces": trace.configuration(), "crash_at": crash_at})

    async def _begin_in(self, child: ChildProcess, order: Message) -> ChildProcess:
        self._busy.add(child)
        try:
            await child.open()
            await child.begin(order)
        except BaseException:
            self._busy.discard(child)
            await asyncio.shield(child.reap())
            raise
        return child

    async def _receive_end(self, claim: Claim, attempt: IsolatedAttempt) -> Message:
        """The child's last message. `max_runtime` counts from when the module was imported."""
        reply = await attempt.child.receive()
        if reply["type"] != "running":
            return reply
        if claim.max_runtime is None:
            return await attempt.child.receive()
        longest = claim.max_runtime.total_seconds() + STOP_TIMEOUT
        overdue = asyncio.get_running_loop().call_later(longest, attempt.overrun)
        try:
            return await attempt.child.receive()
        finally:
            overdue.cancel()

    async def _put_back(self, child: ChildProcess, *, clean: bool) -> None:
        """Keep it for the next job, for a while; but end it if the attempt left something behind (a thread, used-up memory)."""
        if clean:
            self._idle.append(child)
            child.call_in(KEPT_IDLE, lambda: self._end_idle(child))
        else:
            await child.reap()

    def _end_idle(self, child: ChildProcess) -> None:
        self._idle.remove(child)
        reaping = asyncio.create_task(child.reap())
        self._reaping.add(reaping)  # a task without a reference may be garbage-collected
        reaping.add_done_callback(self._reaping.discard)

    async def _after_death(self, kind: Job[..., Any], claim: Claim, attempt: IsolatedAttempt, returncode: int) -> End | None:
        """The child has ended. If this worker killed it, it writes the end of the attempt; otherwise it was a crash."""
        if attempt.is_lost:
            report_stale_write(ClaimLost(claim.id, claim.attempt_id, "heartbeat"))
            return None
        if attempt.stop_reason is not None:
            return End(Move.CANCEL, State.CANCELLED, error=attempt.stop_reason, cause="cancelled")
        if attempt.is_overdue:
            return decide(claim, TimeoutError(f"it ran longer than {claim.max_runtime} and was killed"), kind.policy.retry)
        ended = exit_cause(returncode, oom_kills_rose=self._oom.rose())
        most = self._memory_of(kind)
        if most is not None:  # native code that cannot allocate often aborts
            ended = replace(ended, error=f"{ended.error}; its memory was limited by max_memory={size_text(most)}")
        log.warning("job_process_died", job_id=claim.id, kind=claim.kind, cause=ended.cause, error=ended.error)
        await self._release(claim, ended)
        return None

    async def _release(self, claim: Claim, ended: ExitCause) -> None:
        """Release exactly this job, at once, with the cause. By attempt id: the child may have written the end before."""
        async for _ in retry_forever():
            try:
                if await self._transport.rescue_attempt(self._worker, claim, cause=ended.cause, error=ended.error):
                    self._nudge()
                return
            except UNREACHABLE as error:
                log.warning("worker_database_lost", error=str(error), worker_id=self._worker.id)
                if is_permanent(error):  # a later heartbeat finds that no lane runs it, and releases it
                    return


def _back(given: tuple[str, float] | None) -> tuple[State, timedelta] | None:
    return None if given is None else (State(given[0]), timedelta(seconds=given[1]))
