"""Write what handlers say beside their jobs, in batches, and let nobody wait for it but the end of whoever said it.

Called by: the lanes. The first line is written at once, and what follows at most twice a second, for all attempts together. A
handler that says nothing costs a look into a dict. What an attempt has said is there before its end is: after that the fence
would refuse it. Lines are worth less than jobs: when they cannot be written in time they are dropped, and the job goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from dataclasses import dataclass, field

from holdfast.errors import ClaimLost
from holdfast.jobs.logs import MOST_LINES, Numbered
from holdfast.jobs.model import AttemptId, Claim
from holdfast.telemetry import kept
from holdfast.telemetry.kept import Line
from holdfast.telemetry.log import log
from holdfast.worker.ends import refused
from holdfast.worker.transport import UNREACHABLE, Transport

PAUSE = 0.5  # seconds between two writes while lines keep coming
PATIENCE = 5.0  # seconds that the end of an attempt waits for its lines
LAST_PATIENCE = 1.0  # the same when the worker ends, and has little time itself
LARGEST_BATCH = 200  # lines


@dataclass(slots=True)
class _Tail:
    """What one attempt has said and is not yet written."""

    claim: Claim
    said: int = 0
    unwritten: deque[Numbered] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    is_refused: bool = False  # somebody else has the job: nothing more is written


class Logbook:
    """The lines of one worker's attempts, on their way to the database."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.tails: dict[AttemptId, _Tail] = {}  # of attempts that have said something
        self._touching = threading.Lock()  # lines come from any thread
        self._one_at_a_time = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0  # a copy that a handler forked has our connections, and perhaps a lock that nobody opens there
        self._around = contextvars.Context()  # of no attempt: what is said while lines are written is nobody's line
        self._writing: asyncio.Task[None] | None = None
        self._is_awake = False

    def open(self) -> None:
        """Begin to hear."""
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._around = contextvars.copy_context()
        kept.listen()

    async def close(self) -> None:
        """Hear no more, and write what is left of attempts that were cut off: before they are given back."""
        if self._loop is None:
            return
        kept.stop_listening()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._write_within(LAST_PATIENCE)
        self._loop = None
        self.tails.clear()

    def keep(self, claim: Claim, line: Line) -> None:
        """Add a line of this attempt. From any thread."""
        if os.getpid() != self._process:
            return
        with self._touching:
            tail = self.tails.get(claim.attempt_id)
            if tail is None:
                tail = self.tails[claim.attempt_id] = _Tail(claim)
            if tail.is_refused:
                return
            tail.said += 1
            tail.unwritten.append(Numbered(claim, tail.said, line))
            was_awake, self._is_awake = self._is_awake, True
        if not was_awake and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, context=self._around)

    async def finish(self, claim: Claim) -> None:
        """The handler is done: write what it has said, and forget it."""
        await self._write_within(PATIENCE)
        with self._touching:
            tail = self.tails.pop(claim.attempt_id)
        if tail.unwritten:
            log.warning("job_logs_lost", job_id=claim.id, attempt_id=claim.attempt_id, lines=len(tail.unwritten))

    # ------------------------------------------------------------------------------------------------- writing

    def _wake(self) -> None:
        self._writing = asyncio.create_task(self._write_while_lines_come())

    async def _write_while_lines_come(self) -> None:
        while True:
            try:
                await self._write()
            except UNREACHABLE as error:
                log.warning("worker_database_lost", error=str(error))
            await asyncio.sleep(PAUSE)
            with self._touching:
                self._is_awake = any(tail.unwritten for tail in self.tails.values())
                if not self._is_awake:
                    return

    async def _write_within(self, seconds: float) -> None:
        """Write everything that is there now, if that can be done in this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._write()
        except (TimeoutError, *UNREACHABLE) as error:
            log.warning("worker_database_lost", error=f"{type(error).__name__}: {error}")

    async def _write(self) -> None:
        """What is there now; whoever waited for its turn may find that its lines were among the last one's."""
        if os.getpid() != self._process:
            return
        async with self._one_at_a_time:
            left = self._take()
            try:
                while left:
                    await self._write_batch(left[:LARGEST_BATCH])
                    del left[:LARGEST_BATCH]
            finally:  # of a batch that was not answered too: the same numbers are written once
                self._put_back(left)

    async def _write_batch(self, batch: list[Numbered]) -> None:
        try:
            held = await self._transport.write_logs(batch)
        except UNREACHABLE:
            raise
        except Exception as error:  # whatever it is, the next batch has other lines in it, and no job fails for it
            log.warning("job_logs_lost", lines=len(batch), error=str(error))
            return
        self._refuse({one.claim.attempt_id: one.claim for one in batch if one.claim.attempt_id not in held})

    def _take(self) -> list[Numbered]:
        with self._touching:
            taken = [one for tail in self.tails.values() for one in tail.unwritten]
            for tail in self.tails.values():
                tail.unwritten.clear()
            return taken

    def _put_back(self, left: list[Numbered]) -> None:
        """In front of what came since; if that is more than is kept, the oldest go."""
        if not left:
            return
        with self._touching:
            for tail in self.tails.values():
                mine = [one for one in left if one.claim.attempt_id == tail.claim.attempt_id and not tail.is_refused]
                tail.unwritten = deque([*mine, *tail.unwritten], MOST_LINES)

    def _refuse(self, lost: dict[AttemptId, Claim]) -> None:
        for attempt_id, claim in lost.items():
            with self._touching:
                tail = self.tails.get(attempt_id)
                if tail is not None:
                    tail.is_refused = True
                    tail.unwritten.clear()
            refused(ClaimLost(claim.id, attempt_id, "logs"))
