"""Buffer the log lines of handlers and write them in batches. Called by: `attempt.py`.

The first line is written at once, later ones at most twice a second, for all attempts together. A handler that logs nothing
costs one dict lookup. The lines of an attempt are written before its end: afterwards the fence would refuse them. Lines matter
less than jobs: if they cannot be written in time, they are dropped and the job continues.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from dataclasses import dataclass, field

from holdfast.database.pool import is_permanent
from holdfast.errors import ClaimLost
from holdfast.jobs.logs import MOST_LINES, Numbered
from holdfast.jobs.model import AttemptId, Claim
from holdfast.telemetry import kept
from holdfast.telemetry.kept import Line
from holdfast.telemetry.log import log
from holdfast.worker.outcome_writer import report_stale_write
from holdfast.worker.transports.interface import UNREACHABLE, Transport

PAUSE = 0.5  # seconds between two writes while lines keep coming
FINISH_TIMEOUT = 5.0  # seconds: the longest time that the end of an attempt waits for its lines
CLOSE_TIMEOUT = 1.0  # the same while the worker shuts down, which has little time
LARGEST_BATCH = 200  # lines


@dataclass(slots=True)
class _AttemptLog:
    """The lines of one attempt that are not written yet."""

    claim: Claim
    count: int = 0
    unwritten: deque[Numbered] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    is_refused: bool = False  # another worker has the job: nothing more is written


class LogBuffer:
    """The log lines of one worker's attempts, until they are in the database."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.attempts: dict[AttemptId, _AttemptLog] = {}  # those that have logged something
        self._lock = threading.Lock()  # lines come from any thread
        self._writing_lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0  # our id: a forked copy has our connections, and perhaps a lock that stays locked
        self._context = contextvars.Context()  # of no attempt: what is logged while lines are written belongs to no job
        self._writing: asyncio.Task[None] | None = None
        self._is_writing = False

    def open(self) -> None:
        """Begin to receive lines."""
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._context = contextvars.copy_context()
        kept.listen()

    async def close(self) -> None:
        """Receive no more lines, and write those of attempts that were cut off, before their jobs are released."""
        if self._loop is None:
            return
        kept.stop_listening()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._write_within(CLOSE_TIMEOUT)
        self._loop = None
        self.attempts.clear()

    def keep(self, claim: Claim, line: Line) -> None:
        """Add a line of this attempt. From any thread."""
        if os.getpid() != self._process:
            return
        with self._lock:
            attempt = self.attempts.get(claim.attempt_id)
            if attempt is None:
                attempt = self.attempts[claim.attempt_id] = _AttemptLog(claim)
            if attempt.is_refused:
                return
            attempt.count += 1
            attempt.unwritten.append(Numbered(claim, attempt.count, line))
            was_writing, self._is_writing = self._is_writing, True
        if not was_writing and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, context=self._context)

    async def finish(self, claim: Claim) -> None:
        """The handler has ended: write its lines."""
        await self._write_within(FINISH_TIMEOUT)
        with self._lock:
            attempt = self.attempts.pop(claim.attempt_id)
        if attempt.unwritten:
            log.warning("job_logs_lost", job_id=claim.id, attempt_id=claim.attempt_id, lines=len(attempt.unwritten))

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
            with self._lock:
                self._is_writing = any(attempt.unwritten for attempt in self.attempts.values())
                if not self._is_writing:
                    return

    async def _write_within(self, seconds: float) -> None:
        """Write all buffered lines, within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._write()
        except (TimeoutError, *UNREACHABLE) as error:
            log.warning("worker_database_lost", error=f"{type(error).__name__}: {error}")

    async def _write(self) -> None:
        """Write all buffered lines. A caller that waited for the lock may find that the one before wrote its lines, too."""
        if os.getpid() != self._process:
            return
        async with self._writing_lock:
            left = self._take()
            try:
                while left:
                    await self._write_batch(left[:LARGEST_BATCH])
                    del left[:LARGEST_BATCH]
            finally:  # also a batch without an answer: a line with the same number is stored once
                self._put_back(left)

    async def _write_batch(self, batch: list[Numbered]) -> None:
        try:
            held = await self._transport.write_logs(batch)
        except Exception as error:
            if isinstance(error, UNREACHABLE) and not is_permanent(error):
                raise
            # The next batch has other lines, and no job fails because of its lines.
            log.warning("job_logs_lost", lines=len(batch), error=str(error))
            return
        self._refuse({one.claim.attempt_id: one.claim for one in batch if one.claim.attempt_id not in held})

    def _take(self) -> list[Numbered]:
        with self._lock:
            taken = [one for attempt in self.attempts.values() for one in attempt.unwritten]
            for attempt in self.attempts.values():
                attempt.unwritten.clear()
            return taken

    def _put_back(self, left: list[Numbered]) -> None:
        """Before the lines that came since. If there are too many, the oldest are dropped."""
        if not left:
            return
        with self._lock:
            for attempt in self.attempts.values():
                mine = [one for one in left if one.claim.attempt_id == attempt.claim.attempt_id and not attempt.is_refused]
                attempt.unwritten = deque([*mine, *attempt.unwritten], MOST_LINES)

    def _refuse(self, lost: dict[AttemptId, Claim]) -> None:
        for attempt_id, claim in lost.items():
            with self._lock:
                attempt = self.attempts.get(attempt_id)
                if attempt is not None:
                    attempt.is_refused = True
                    attempt.unwritten.clear()
            report_stale_write(ClaimLost(claim.id, attempt_id, "logs"))
