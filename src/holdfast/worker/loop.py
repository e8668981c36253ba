"""The worker: claims jobs in batches, runs them in lanes, has their ends written. Started by: the programs in apps/, tests.

Three things happen at once, each in its own task and on its own connection: the next batch is claimed, the handlers of
the last one run, and the ends of the one before are written (`ends.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.database.listen import listen
from holdfast.database.pool import Link, pool
from holdfast.errors import ClaimLost, PayloadInvalid, UnknownKind, UsageError
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import finish
from holdfast.jobs.model import AttemptId, Claim, JobId, WorkerId
from holdfast.jobs.outcome import End, decide, released, released_poll
from holdfast.jobs.renew import Beat, WorkerInfo, register, resign
from holdfast.jobs.states import Move, State
from holdfast.telemetry.log import log
from holdfast.worker.context import Context
from holdfast.worker.crashpoints import crashpoint
from holdfast.worker.ends import LOST_DATABASE, Ends, as_text, attempts, refused
from holdfast.worker.execute import execute
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.kinds import Job, registered
from holdfast.worker.options import WorkerOptions
from holdfast.worker.pace import Pace
from holdfast.worker.sweeps import Sweeps


@dataclass(slots=True)
class _Running:
    """One job that a lane is at."""

    claim: Claim
    lane: asyncio.Task[Any] | None
    context: Context | None = None
    stop_reason: str | None = None


class Worker:
    """A worker incarnation: a new id at every start."""

    def __init__(self, url: str, kinds: Iterable[Job[..., Any]] | None = None, options: WorkerOptions | None = None) -> None:
        self.options = options or WorkerOptions()
        self.id = WorkerId(str(uuid4()))
        host = socket.gethostname()
        self.info = WorkerInfo(self.id, self.options.name or host, host, os.getpid(), version("holdfast"))
        self._url = url
        self._kinds = {kind.kind: kind for kind in (registered().values() if kinds is None else kinds)}
        self._claim_link = Link(url)
        self._pool: AsyncConnectionPool[Any] = pool(url, most=max(2, min(self.options.concurrency, 8)))
        self._ends = Ends(url, self._pool, lambda kind: self._kinds[kind].policy.retry, self._on_end)
        self._sweeps = self._make_sweeps()
        self._heartbeat = self._make_heartbeat()
        self._ready: deque[Claim] = deque()
        self._idle_lanes: deque[asyncio.Future[None]] = deque()
        self._running: dict[AttemptId, _Running] = {}  # by attempt: a worker may get back a job that it lost and is still at
        self._wake, self._stopping, self._saw_empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._pace = Pace(self.options.concurrency)
        self._ended_at_beat = 0
        self._is_claiming = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def completed(self) -> int:
        """How many jobs this worker has completed."""
        return self._ends.completed

    # ------------------------------------------------------------------------------------------------- the story

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`, or until there is nothing left to do; then give back what is held and resign."""
        if not self._kinds:
            raise UsageError("this worker knows no kinds; import the modules whose functions are decorated with @job")
        self._loop = asyncio.get_running_loop()
        try:
            await self._pool.open()
            async with self._claim_link.use() as conn:
                await register(conn, self.info, lease=self.options.lease)
        except BaseException:
            await self._close()
            raise
        self._heartbeat.start()
        log.info("worker_started", worker_id=self.id, kinds=sorted(self._kinds))
        duties = [asyncio.create_task(duty) for duty in self._duties()]
        try:
            await self._until_told(duties, until_empty=until_empty)
        finally:
            await self._leave(duties)

    def stop(self) -> None:
        """Claim no more; `run` returns when running jobs had their grace."""
        self._stopping.set()
        self._wake.set()

    def nudge(self) -> None:
        """Something was enqueued: look now."""
        self._wake.set()

    async def run_by_id(self, job_id: JobId) -> bool:
        """Claim this very job and run it here; False if it could not be claimed, and then nothing was called."""
        async with self._claim_link.use() as conn:
            one = await claim_by_id(conn, self.id, job_id)
        if one is None:
            return False
        self._hand_out([one])
        return True

    def held(self) -> list[Claim]:
        """Everything that this worker believes to hold. Called from the heartbeat's thread, so it copies."""
        return [*(one.claim for one in list(self._running.values())), *list(self._ready), *self._ends.unwritten]

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        lanes = [self._lane() for _ in range(self.options.concurrency)]
        return [self._claim_batches(), self._ends.write_batches(), listen(self._url, self._on_hint), *lanes]

    async def _until_told(self, duties: list[asyncio.Task[None]], *, until_empty: bool) -> None:
        async def stopped() -> None:
            await self._stopping.wait()

        told = [asyncio.create_task(stopped())]
        if until_empty:
            told.append(asyncio.create_task(self._drained()))
        try:
            done, _ = await asyncio.wait([*told, *duties], return_when=asyncio.FIRST_COMPLETED)
            for duty in done:
                duty.result()  # a duty that ended has failed: raise what it raised
        finally:
            for wait in told:
                wait.cancel()

    async def _drained(self) -> None:
        """Nothing was held, then a claim found nothing, and nothing had ended in between that could have left more to do."""
        while True:
            quiet, ended = self._is_quiet(), self._pace.ended
            self._saw_empty.clear()
            self._wake.set()
            await self._saw_empty.wait()
            if quiet and self._pace.ended == ended and self._is_quiet():
                return
            await asyncio.sleep(0.002)

    def _is_quiet(self) -> bool:
        return not self.held() and not self._is_claiming

    async def _leave(self, duties: list[asyncio.Task[None]]) -> None:
        self.stop()
        log.info("worker_stopping", worker_id=self.id, running=len(self._running))
        claiming, *others = duties
        await asyncio.wait([claiming], timeout=10)  # not cancelled: what it is just claiming would be nobody's
        await self._give_grace()
        left = self.held()  # before the lanes are cancelled and forget what they were at
        for duty in (claiming, *others):
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        await self._sweeps.close()
        await self._give_back(left)
        await self._heartbeat.stop()
        await self._close()
        log.info("worker_stopped", worker_id=self.id, completed=self.completed)

    async def _close(self) -> None:
        await self._ends.close()
        await self._claim_link.close()
        await self._pool.close()

    # ------------------------------------------------------------------------------------------------- claiming

    async def _claim_batches(self) -> None:
        while not self._stopping.is_set():
            room = self._room()
            claims: list[Claim] = []
            if room > 0:
                self._is_claiming = True
                claims = await self._claim(room)
                self._hand_out(claims)
                self._is_claiming = False
            if len(claims) < room:
                self._saw_empty.set()
            if len(claims) < room or room <= 0:
                await self._wake.wait()
                self._wake.clear()

    async def _claim(self, limit: int) -> list[Claim]:
        async for _ in attempts():
            crashpoint("claim.before")
            try:
                async with self._claim_link.use() as conn:
                    claims = await claim(conn, self.id, kinds=list(self._kinds), queues=self.options.queues, limit=limit)
                crashpoint("claim.after_commit")
                return claims
            except (*LOST_DATABASE, psycopg.errors.DeadlockDetected) as error:
                log.warning("worker_database_lost", error=str(error), worker_id=self.id)
            if self._stopping.is_set():
                break
        return []

    def _room(self) -> int:
        """How many jobs to ask for: one per free lane, and a few more when jobs are short (see `pace.py`)."""
        free = self.options.concurrency - len(self._running) - len(self._ready)
        return min(free + self._pace.ahead, self.options.largest_batch)

    def _hand_out(self, claims: list[Claim]) -> None:
        self._ready.extend(claims)
        wanted = len(claims)
        while wanted and self._idle_lanes:
            waiting = self._idle_lanes.popleft()
            if not waiting.done():
                waiting.set_result(None)
                wanted -= 1

    # ------------------------------------------------------------------------------------------------- running

    async def _lane(self) -> None:
        me = asyncio.current_task()
        while True:
            while self._ready:
                following: Claim | None = self._ready.popleft()
                while following is not None:  # the next step of a chain stays in this lane
                    following = await self._work(following, me)
                if self._stopping.is_set():
                    return
            self._wake.set()
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_lanes.append(waiting)
            await waiting

    async def _work(self, claim: Claim, lane: asyncio.Task[Any] | None) -> Claim | None:
        """One attempt; the claim of its next step if it could be taken along."""
        self._running[claim.attempt_id] = running = _Running(claim, lane)
        started = time.perf_counter()
        try:
            end = await self._attempt(running)
            return None if end is None else await self._end(claim, end)
        finally:
            del self._running[claim.attempt_id]
            self._pace.took(time.perf_counter() - started)

    async def _attempt(self, running: _Running) -> End | None:
        """Run the handler; None when somebody else has the job by now."""
        claim = running.claim
        try:
            kind = self._kinds.get(claim.kind)
            if kind is None:
                raise UnknownKind(claim.kind, list(self._kinds))
            return await execute(kind, claim, self._make_context)
        except ClaimLost as lost:
            refused(lost)
            return None
        except UnknownKind as unknown:
            log.error("job_unknown_kind", job_id=claim.id, error=str(unknown))
            return _given_back(claim, str(unknown))
        except asyncio.CancelledError:
            if running.stop_reason is None or running.lane is None:
                raise
            running.lane.uncancel()  # the handler was stopped, not its lane
            return End(Move.CANCEL, State.CANCELLED, error=running.stop_reason, cause="cancelled")

    def _make_context(self, claim: Claim) -> Context:
        context = Context(claim, self._pool.connection, self._heartbeat.lease)
        self._running[claim.attempt_id].context = context
        return context

    async def _end(self, claim: Claim, end: End) -> Claim | None:
        try:
            result = as_text(end.result)
        except PayloadInvalid as invalid:
            end = decide(claim, invalid, self._kinds[claim.kind].policy.retry)
            result = None
        if end.is_only_a_completion and claim.ties == 0:
            self._ends.gather(claim, result)
            return None
        if self._can_take_along(claim, end):
            following = await self._ends.write_and_take_along(claim, result, end.then[0])
            if following is not None:
                return following
        await self._ends.write(claim, end)
        return None

    def _can_take_along(self, claim: Claim, end: End) -> bool:
        """A plain job with one plain child that this worker may run: one commit ends the one and claims the other."""
        if end.move is not Move.COMPLETE or end.publish or end.join or len(end.then) != 1 or claim.ties:
            return False
        child = end.then[0]
        known = child.kind in self._kinds and child.queue in self.options.queues
        return known and child.is_plain and child.run_after is None and not self._stopping.is_set()

    # ------------------------------------------------------------------------------------------------- beats and hints

    def _on_end(self, end: End) -> None:
        if end.delay is not None and end.state is State.PENDING:
            self._sweeps.promote_in(end.delay)
        self._wake.set()

    def _on_hint(self, hint: str) -> None:
        if hint == "@":  # something for later: the beat tells when
            self._heartbeat.beat_now()
        self._wake.set()

    def _on_beat_from_thread(self, beat: Beat) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_beat, beat)

    def _on_beat(self, beat: Beat) -> None:
        for attempt_id in beat.lost:
            if (running := self._running.get(attempt_id)) and running.context:
                running.context.lose()
        for attempt_id in beat.cancelled:
            self._stop_job(attempt_id, "it was asked to stop")
        if self._stopping.is_set():
            return
        if self._ready and self._pace.ended == self._ended_at_beat:
            self._sweeps.aside(self._give_up_waiting())
        self._ended_at_beat = self._pace.ended
        if beat.can_claim:
            self._wake.set()
        self._sweeps.act_on(beat)

    def _stop_job(self, attempt_id: AttemptId, reason: str) -> None:
        running = self._running.get(attempt_id)
        if running is None or running.stop_reason is not None:
            return
        running.stop_reason = reason
        if running.context is not None:
            running.context.ask_to_stop(reason)
        if running.lane is not None and self._kinds[running.claim.kind].is_async:
            running.lane.cancel()

    def _make_sweeps(self) -> Sweeps:
        return Sweeps(
            self._pool,
            self.info,
            kinds=list(self._kinds),
            queues=list(self.options.queues),
            beat=self.options.beat,
            hand_out=self._hand_out,
            nudge=self.nudge,
        )

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._url,
            self.info,
            self.held,
            self._on_beat_from_thread,
            every=self.options.beat,
            lease=self.options.lease,
            kinds=list(self._kinds),
            queues=list(self.options.queues),
        )

    # ------------------------------------------------------------------------------------------------- giving back

    async def _give_up_waiting(self) -> None:
        """Nothing ended since the last beat, and held jobs wait behind it: somebody else may have a free lane for them."""
        self._pace.forget()
        waiting, self._ready = self._ready, deque()
        for held in waiting:
            await self._ends.write(held, _given_back(held, "its worker was busy with others"))

    async def _give_grace(self) -> None:
        """Let what runs come to its end, and what has ended be written."""
        deadline = asyncio.get_running_loop().time() + self.options.grace.total_seconds()
        while (self._running or self._ends.unwritten) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.002)

    async def _give_back(self, left: list[Claim]) -> None:
        """Release what was claimed and not finished, without prejudice, and end the lease."""
        try:
            async with asyncio.timeout(5), self._pool.connection() as conn:
                for held in left:
                    try:
                        await finish(conn, held, _given_back(held, "shutdown"))
                    except ClaimLost as lost:
                        refused(lost)
                await resign(conn, self.id)
        except (psycopg.Error, PoolTimeout, TimeoutError) as error:
            log.warning("worker_database_lost", error=str(error), worker_id=self.id)


def _given_back(claim: Claim, reason: str) -> End:
    return released_poll(claim, reason) if claim.is_poll else released(reason)
