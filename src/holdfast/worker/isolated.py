"""Run a handler in a process of its own, and outlive whatever it does. Called by: the lanes.

For kinds with `run_in="process"`, and for any job that must run alone because a process that it shared has died. The child
(`inside.py`) runs the attempt and writes its end. Here the lease is kept, cancel and loss are passed on, a handler that does
not listen is killed, and a child that dies is noticed at once: exactly its job is given back, with the cause.
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
from holdfast.worker.deaths import Death, OomCounter, cause_of_death
from holdfast.worker.direct import Direct
from holdfast.worker.ends import Ends, attempts
from holdfast.worker.handover import claim_to, place_of
from holdfast.worker.kinds import Job
from holdfast.worker.transport import UNREACHABLE

MOMENT = 2.0  # seconds between asking a handler to stop and killing its process; and beyond max_runtime
NO_PROCESS = timedelta(seconds=5)  # until the next try when the machine could not start one
KEPT_IDLE = 60.0  # seconds that a child without work is kept for the next job

Message = dict[str, Any]


class ChildDied(Exception):
    """The process is gone, and its attempt was not seen to end."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the process ended with {returncode}")
        self.returncode = returncode


class Cell:
    """One child process: handed one attempt at a time."""

    def __init__(self, hello: Message) -> None:
        ours, theirs = socket.socketpair()
        self._hello, self._ours = hello, ours
        self._process = spawn.start_module("holdfast.worker.inside", theirs.fileno())
        theirs.close()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ending: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(self) -> None:
        """Wait until it can be handed an attempt."""
        if self._reader is not None:
            return
        self._reader, self._writer = await asyncio.open_connection(sock=self._ours)
        self.say(self._hello)
        await self.hear()

    async def begin(self, order: Message) -> None:
        """Hand it an attempt; `ChildDied` means that it was gone before it began."""
        assert self._writer is not None
        self.say(order)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        await self.hear()

    def say(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def kill_in(self, seconds: float) -> None:
        """Its attempt should end by itself; if it has not by then, end the process."""
        self.then_in(seconds, self.kill)

    def then_in(self, seconds: float, end: Callable[[], None]) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(seconds, end)

    def spare(self) -> None:
        """What would have ended it does not any more."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def kill(self) -> None:
        """End it, and what its handlers started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def bury(self) -> int:
        """End it if it has not ended, and let the kernel forget it; its exit status."""
        self.spare()
        if self._reader is not None and self._reader.at_eof():  # it is just ending: its own status says why
            await asyncio.to_thread(self._wait, MOMENT)
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

    async def hear(self) -> Message:
        """The next thing it says; `ChildDied` if there is nothing more to come."""
        assert self._reader is not None
        try:
            text = await self._reader.readline()
        except ConnectionError:
            text = b""
        if not text:
            raise ChildDied(await self.bury())
        heard: Message = json.loads(text)
        return heard


class Attempt:
    """What runs in a cell, as the lanes see it: it can be told to stop, and that it is lost."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.stop_reason: str | None = None
        self.is_lost = False
        self.is_overdue = False

    def ask_to_stop(self, reason: str) -> None:
        self.stop_reason = reason
        self.cell.say({"say": "stop", "reason": reason})
        self.cell.kill_in(MOMENT)

    def lose(self) -> None:
        self.is_lost = True
        self.cell.say({"say": "lose"})
        self.cell.kill_in(MOMENT)

    def overrun(self) -> None:
        """It ran beyond its longest time, and did not stop when its own clock said so."""
        self.is_overdue = True
        self.cell.kill()


class Isolated:
    """The child processes of one worker."""

    def __init__(
        self,
        url: str,
        transport: Direct,
        worker: WorkerInfo,
        ends: Ends,
        lease: Lease,
        nudge: Callable[[], None],
        *,
        keep_logs: bool = True,
        max_memory: int | None = None,
    ) -> None:
        self._url, self._transport, self._worker, self._ends, self._lease = url, transport, worker, ends, lease
        self._nudge, self._keep_logs, self._max_memory = nudge, keep_logs, max_memory
        self._idle: list[Cell] = []
        self._busy: set[Cell] = set()
        self._burials: set[asyncio.Task[int]] = set()
        self._oom = OomCounter()
        self._crash_at = from_settings()

    def takes(self, kind: Job[..., Any], claim: Claim) -> bool:
        """Whether this attempt belongs into a process of its own."""
        if not claim.alone and kind.policy.run_in != "process":
            return False
        if place_of(kind) is not None:
            return True
        log.warning("job_not_isolated", job_id=claim.id, kind=claim.kind, error="no other process can import its function")
        return False

    async def run(
        self, kind: Job[..., Any], claim: Claim, introduce: Callable[[Attempt], None]
    ) -> tuple[End | None, str | None]:
        """One attempt. An `End` is one that the child could not write; if there is none, it is written, or not ours to write,
        and the other value says how it ended."""
        try:
            cell = await self._begin(kind, claim)
        except (ChildDied, OSError) as error:
            log.error("job_process_not_started", job_id=claim.id, kind=claim.kind, error=str(error))
            return decide(claim, Snooze(NO_PROCESS, f"no process could be started for it: {error}")), None
        attempt = Attempt(cell)
        introduce(attempt)
        try:
            said = await self._hear_out(claim, attempt)
        except ChildDied as died:
            return await self._after_death(kind, claim, attempt, died.returncode), None if attempt.is_lost else "crash"
        except BaseException:  # the worker leaves: it gives the job back itself, and nobody may be at it then
            await asyncio.shield(cell.bury())
            raise
        finally:
            self._busy.discard(cell)
        cell.spare()
        if said["say"] == "cannot":
            await self._put_back(cell, clean=True)
            return decide(claim, RuntimeError(f"its process could not load it: {said['error']}"), kind.policy.retry), None
        self._ends.note(claim, said["move"], back=_back(said["back"]))
        self._transport.changed()  # the child wrote it, and hears nobody
        for operation in said["refused"]:
            stale_writebacks.labels(operation).inc()
        await self._put_back(cell, clean=said["clean"] and attempt.stop_reason is None)
        return None, said["move"]

    def renewed(self) -> None:
        """The lease was renewed: what runs in children may go on."""
        for cell in self._busy:
            cell.say({"say": "lease", "until": self._lease.until})

    def stopping(self) -> None:
        """The worker was told to end: handlers in children learn of it too."""
        for cell in self._busy:
            cell.say({"say": "stopping"})

    async def close(self) -> None:
        """End every child that waits for work. Those that run something end with their lanes."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*self._burials, *(cell.bury() for cell in idle))

    async def _begin(self, kind: Job[..., Any], claim: Claim) -> Cell:
        """A child that has begun with this attempt, and nothing else: an idle one, or a new one."""
        place = place_of(kind)
        assert place is not None
        order = {"say": "run", "claim": claim_to(claim), "module": place.module, "file": place.file, "until": self._lease.until}
        order["max_memory"] = self._memory_of(kind)
        if claim.alone and claim.crashes + 1 >= claim.max_crashes:
            return await self._begin_in(self._new_cell(), order)  # what it does next decides: nobody's leftovers are in there
        while self._idle:
            cell = self._idle.pop()
            cell.spare()
            with contextlib.suppress(ChildDied):  # while it was idle: nobody's fault
                return await self._begin_in(cell, order)
        return await self._begin_in(self._new_cell(), order)

    def _memory_of(self, kind: Job[..., Any]) -> int | None:
        """How many bytes its process may allocate."""
        said = kind.policy.max_memory
        return self._max_memory if said is None else a_memory("max_memory", said)

    def _new_cell(self) -> Cell:
        crash_at, self._crash_at = self._crash_at, None  # once, as in any other process: its successor is to go on
        hello = {"url": self._url, "name": self._worker.name, "path": sys.path, "keep_logs": self._keep_logs}
        return Cell({**hello, "log": configuration(), "traces": trace.configuration(), "crash_at": crash_at})

    async def _begin_in(self, cell: Cell, order: Message) -> Cell:
        self._busy.add(cell)
        try:
            await cell.open()
            await cell.begin(order)
        except BaseException:
            self._busy.discard(cell)
            await asyncio.shield(cell.bury())
            raise
        return cell

    async def _hear_out(self, claim: Claim, attempt: Attempt) -> Message:
        """What the child says at the end. Its time counts from when its module was imported."""
        said = await attempt.cell.hear()
        if said["say"] != "running":
            return said
        if claim.max_runtime is None:
            return await attempt.cell.hear()
        longest = claim.max_runtime.total_seconds() + MOMENT
        overdue = asyncio.get_running_loop().call_later(longest, attempt.overrun)
        try:
            return await attempt.cell.hear()
        finally:
            overdue.cancel()

    async def _put_back(self, cell: Cell, *, clean: bool) -> None:
        """Keep it for the next job, for a while; one that something is left over in is ended."""
        if clean:
            self._idle.append(cell)
            cell.then_in(KEPT_IDLE, lambda: self._let_go(cell))
        else:
            await cell.bury()

    def _let_go(self, cell: Cell) -> None:
        self._idle.remove(cell)
        burial = asyncio.create_task(cell.bury())
        self._burials.add(burial)  # a task that nobody refers to may vanish in the middle
        burial.add_done_callback(self._burials.discard)

    async def _after_death(self, kind: Job[..., Any], claim: Claim, attempt: Attempt, returncode: int) -> End | None:
        """The child is gone. If we ended it, the end of its attempt is ours to write; if not, it was a crash."""
        if attempt.is_lost:
            return None
        if attempt.stop_reason is not None:
            return End(Move.CANCEL, State.CANCELLED, error=attempt.stop_reason, cause="cancelled")
        if attempt.is_overdue:
            return decide(claim, TimeoutError(f"it ran longer than {claim.max_runtime} and was killed"), kind.policy.retry)
        death = cause_of_death(returncode, oom_kills_rose=self._oom.rose())
        most = self._memory_of(kind)
        if most is not None:  # native code that cannot allocate often aborts
            death = replace(death, error=f"{death.error}; its memory was limited by max_memory={size_text(most)}")
        log.warning("job_process_died", job_id=claim.id, kind=claim.kind, cause=death.cause, error=death.error)
        await self._release(claim, death)
        return None

    async def _release(self, claim: Claim, death: Death) -> None:
        """Give back exactly this job, at once, with the cause. By attempt: the child may have written its end before."""
        async for _ in attempts():
            try:
                if await self._transport.rescue_attempt(self._worker, claim, cause=death.cause, error=death.error):
                    self._nudge()
                return
            except UNREACHABLE as error:
                log.warning("worker_database_lost", error=str(error), worker_id=self._worker.id)
                if is_permanent(error):  # a later beat finds that nobody runs it, and gives it back
                    return


def _back(said: tuple[str, float] | None) -> tuple[State, timedelta] | None:
    return None if said is None else (State(said[0]), timedelta(seconds=said[1]))
