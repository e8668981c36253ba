"""The worker: claims jobs, runs them in lanes, writes their ends in batches. Started by: the programs in apps/, and tests.

Three things happen at once, each in its own task and on its own connection: the next batch is claimed, the handlers of
the last one run, and the ends of the one before are written. Plain completions gather while the previous batch is
being written, so batches grow by themselves under load and are of one when it is quiet.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.database.listen import listen
from holdfast.database.pool import Link, pool
from holdfast.errors import ClaimLost, UnknownKind
from holdfast.jobs import effects, promote
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import complete_plain, finish, resolve_unknown
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.jobs.outcome import End, decide, released, released_poll
from holdfast.jobs.payload import to_json
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.renew import Beat, WorkerInfo, register, resign
from holdfast.jobs.rescue import rescue
from holdfast.jobs.states import Move, State
from holdfast.telemetry.log import log
from holdfast.worker.context import Context
from holdfast.worker.crashpoints import crashpoint
from holdfast.worker.execute import execute
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.kinds import Job, cleaners, registered

VERSION = "0.1.0"
LARGEST_BATCH = 500
EVENT_OF = {Move.COMPLETE: "job_completed", Move.FAIL: "job_failed", Move.RETRY: "job_retried", Move.CANCEL: "job_cancelled"}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves."""

    queues: Sequence[str] = ("default",)
    concurrency: int = 10
    beat: timedelta = timedelta(seconds=5)
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=30)
    name: str | None = None
    largest_batch: int = LARGEST_BATCH


@dataclass(slots=True)
class _Running:
    """One job that a lane is at."""

    claim: Claim
    lane: asyncio.Task[Any] | None
    context: Context | None = None
    stop_reason: str | None = None


@dataclass(slots=True)
class _Ends:
    """Plain completions that wait to be written together."""

    claims: list[Claim] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)


class Worker:
    """A worker incarnation: a new id at every start."""

    def __init__(
        self, url: str, kinds: Iterable[Job[..., Any]] | None = None, options: WorkerOptions | None = None
    ) -> None:
        self.options = options or WorkerOptions()
        self.id = WorkerId(str(uuid4()))
        self.info = WorkerInfo(self.id, self.options.name or socket.gethostname(), socket.gethostname(), os.getpid(), VERSION)
        self.completed = 0
        self._url = url
        self._kinds = {kind.kind: kind for kind in (registered().values() if kinds is None else kinds)}
        self._claim_link, self._end_link = Link(url), Link(url)
        self._pool: AsyncConnectionPool[Any] = pool(url, most=max(2, min(self.options.concurrency, 8)))
        self._ready: deque[Claim] = deque()
        self._idle_lanes: deque[asyncio.Future[None]] = deque()
        self._running: dict[JobId, _Running] = {}
        self._ends = _Ends()
        self._writing: list[Claim] = []
        self._ends_waiting = asyncio.Event()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._appetite = 0  # how many jobs to hold beyond those that lanes are free for
        self._saw_empty = asyncio.Event()
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._heartbeat: Heartbeat | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------------- the story

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`, or until there is nothing left to do; then give back what is held and resign."""
        self._loop = asyncio.get_running_loop()
        await self._pool.open()
        async with self._claim_link.use() as conn:
            await register(conn, self.info, lease=self.options.lease)
        self._heartbeat = self._start_heartbeat()
        log.info("worker_started", worker_id=self.id, kinds=sorted(self._kinds))
        tasks = [asyncio.create_task(work) for work in self._duties()]
        try:
            await self._until_told(tasks, until_empty=until_empty)
        finally:
            await self._leave(tasks)

    def stop(self) -> None:
        """Claim no more; `run` returns when running jobs had their grace."""
        self._stopping.set()
        self._wake.set()

    def nudge(self) -> None:
        """Something was enqueued: look now."""
        self._wake.set()

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        lanes = [self._lane() for _ in range(self.options.concurrency)]
        return [self._claim_batches(), self._write_ends(), listen(self._url, self._hint), *lanes]

    async def _until_told(self, tasks: list[asyncio.Task[None]], *, until_empty: bool) -> None:
        waits = [asyncio.create_task(self._stopping.wait())]
        if until_empty:
            waits.append(asyncio.create_task(self._drained()))
        try:
            done, _ = await asyncio.wait([*waits, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done & set(tasks):
                task.result()  # a duty that ended has failed: raise what it raised
        finally:
            for wait in waits:
                wait.cancel()

    async def _drained(self) -> None:
        while True:
            self._saw_empty.clear()
            self._wake.set()
            await self._saw_empty.wait()
            if not (self._ready or self._running or self._ends.claims or self._writing):
                return
            await asyncio.sleep(0.005)

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        self.stop()
        log.info("worker_stopping", worker_id=self.id, running=len(self._running))
        await self._grace()
        for task in [*tasks, *self._side_tasks]:
            task.cancel()
        await asyncio.gather(*tasks, *self._side_tasks, return_exceptions=True)
        await self._give_back()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        for link in (self._claim_link, self._end_link):
            await link.close()
        await self._pool.close()
        log.info("worker_stopped", worker_id=self.id, completed=self.completed)

    # ------------------------------------------------------------------------------------------------- claiming

    async def _claim_batches(self) -> None:
        pause = 0.1
        while not self._stopping.is_set():
            room = self._room()
            if room <= 0:
                await self._wait_for_wake()
                continue
            try:
                claims = await self._claim(room)
            except (psycopg.Error, OSError) as error:
                log.warning("worker_database_lost", error=str(error), worker_id=self.id)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
                continue
            pause = 0.1
            self._hand_out(claims)
            self._adapt(asked=room, got=len(claims))
            if len(claims) < room:
                self._saw_empty.set()
                await self._wait_for_wake()

    async def _claim(self, limit: int) -> list[Claim]:
        crashpoint("claim.before")
        async with self._claim_link.use() as conn:
            claims = await claim(conn, self.id, kinds=list(self._kinds), queues=self.options.queues, limit=limit)
        crashpoint("claim.after_commit")
        return claims

    def _room(self) -> int:
        """How many jobs to ask for: one per free lane, and as many more as were eaten up before the last answer came."""
        free = self.options.concurrency - len(self._running) - len(self._ready)
        return min(free + self._appetite, self.options.largest_batch)

    def _adapt(self, *, asked: int, got: int) -> None:
        """Hold more when jobs are so short that lanes waited for the database; fewer when held jobs wait for lanes."""
        starved = got == asked and len(self._running) < self.options.concurrency
        if starved:
            self._appetite = min(max(2 * self._appetite, self.options.concurrency), self.options.largest_batch)
        elif len(self._ready) > self.options.concurrency:
            self._appetite //= 2

    def _hand_out(self, claims: Iterable[Claim]) -> None:
        for one in claims:
            self._ready.append(one)
            while self._idle_lanes:
                waiting = self._idle_lanes.popleft()
                if not waiting.done():
                    waiting.set_result(None)
                    break

    async def _wait_for_wake(self) -> None:
        await self._wake.wait()
        self._wake.clear()

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
        self._running[claim.id] = running = _Running(claim, lane)
        try:
            end = await self._attempt(running)
            return None if end is None else await self._end(claim, end)
        finally:
            del self._running[claim.id]

    async def _attempt(self, running: _Running) -> End | None:
        """Run the handler; None when somebody else has the job by now."""
        claim = running.claim
        try:
            kind = self._kinds.get(claim.kind)
            if kind is None:
                raise UnknownKind(claim.kind, list(self._kinds))
            return await execute(kind, claim, self._make_context)
        except ClaimLost as lost:
            self._refused(lost)
            return None
        except UnknownKind as unknown:
            log.error("job_unknown_kind", job_id=claim.id, error=str(unknown))
            return released(str(unknown))
        except asyncio.CancelledError:
            if running.stop_reason is None or running.lane is None:
                raise
            running.lane.uncancel()  # the handler was stopped, not its lane
            return End(Move.CANCEL, State.CANCELLED, error=running.stop_reason, cause="cancelled")

    def _make_context(self, claim: Claim) -> Context:
        assert self._heartbeat is not None
        context = Context(claim, self._pool.connection, self._heartbeat.lease)
        self._running[claim.id].context = context
        return context

    # ------------------------------------------------------------------------------------------------- ending

    async def _end(self, claim: Claim, end: End) -> Claim | None:
        if end.is_only_a_completion and claim.ties == 0:
            self._ends.claims.append(claim)
            self._ends.results.append(None if end.result is None else to_json(end.result, what="result"))
            self._ends_waiting.set()
            return None
        if end.move is Move.COMPLETE and self._can_take_along(claim, end):
            result = None if end.result is None else to_json(end.result, what="result")
            async with self._pool.connection() as conn:
                child = await complete_and_chain(conn, claim, result, end.then[0])
            if child is not None:
                self.completed += 1
                return child
        await self._finish(claim, end)
        return None

    def _can_take_along(self, claim: Claim, end: End) -> bool:
        if end.publish is not None or end.join is not None or len(end.then) != 1 or claim.ties or self._stopping.is_set():
            return False
        child = end.then[0]
        return child.is_plain and child.run_after is None and child.kind in self._kinds and child.queue in self.options.queues

    async def _write_ends(self) -> None:
        while True:
            await self._ends_waiting.wait()
            self._ends_waiting.clear()
            ends, self._ends = self._ends, _Ends()
            if not ends.claims:
                continue
            self._writing = ends.claims
            try:
                await self._write(ends)
            finally:
                self._writing = []

    async def _write(self, ends: _Ends) -> None:
        """Write a batch until the database has taken it. A connection that dies on the way is no reason to lose an end."""
        unsure, pause = False, 0.1
        while True:
            try:
                async with self._end_link.use() as conn:
                    written = await complete_plain(conn, ends.claims, ends.results)
                break
            except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
                log.warning("worker_database_lost", error=str(error), worker_id=self.id)
                unsure = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        self.completed += len(written)
        for claim, result in zip(ends.claims, ends.results, strict=True):
            if claim.id not in written:
                await self._finish_left_over(claim, result, unsure=unsure)

    async def _finish_left_over(self, claim: Claim, result: str | None, *, unsure: bool) -> None:
        """A completion that the batch did not take: something hangs on the job, an earlier try was committed, or it is lost."""
        try:
            async with self._pool.connection() as conn:
                if unsure and await resolve_unknown(conn, claim):
                    self.completed += 1
                    return
        except ClaimLost as lost:
            self._refused(lost)
            return
        await self._finish(claim, End(Move.COMPLETE, State.COMPLETED, result=None if result is None else json.loads(result)))

    async def _finish(self, claim: Claim, end: End) -> None:
        """Write any other end, in its own transaction with all that follows from it."""
        try:
            async with self._pool.connection() as conn:
                await finish(conn, claim, end)
        except ClaimLost as lost:
            self._refused(lost)
            return
        except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
            log.warning("worker_database_lost", error=str(error), worker_id=self.id)
            await self._finish_after_loss(claim, end)
        except Exception as error:  # the caller's publish(): nothing was committed, so this attempt has failed
            if end.publish is None:
                raise
            from_publish = self._kinds[claim.kind].policy.retry
            await self._finish(claim, decide(claim, error, from_publish))
            return
        self._told(claim, end)

    async def _finish_after_loss(self, claim: Claim, end: End) -> None:
        pause = 0.1
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
            try:
                async with self._pool.connection() as conn:
                    if not await resolve_unknown(conn, claim):
                        await finish(conn, claim, end)
                return
            except ClaimLost as lost:
                self._refused(lost)
                return
            except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
                log.warning("worker_database_lost", error=str(error), worker_id=self.id)

    def _told(self, claim: Claim, end: End) -> None:
        event = EVENT_OF.get(end.move, "job_ended")
        self.completed += end.move is Move.COMPLETE
        log.info(event, job_id=claim.id, kind=claim.kind, attempt=claim.attempt_no, move=str(end.move), error=end.error)
        if end.delay is not None and end.state is State.PENDING and self._loop is not None:
            # A retry sooner than the next beat would otherwise wait for it.
            self._loop.call_later(end.delay.total_seconds() + 0.01, lambda: self._aside(self._promote()))
        self._wake.set()

    def _refused(self, lost: ClaimLost) -> None:
        log.warning("writeback_stale_attempt", job_id=lost.job_id, attempt_id=lost.attempt_id, operation=lost.operation)

    # ------------------------------------------------------------------------------------------------- beats and hints

    def _start_heartbeat(self) -> Heartbeat:
        heartbeat = Heartbeat(
            self._url,
            self.info,
            self.held,
            self._beat_from_thread,
            every=self.options.beat,
            lease=self.options.lease,
            kinds=list(self._kinds),
            queues=list(self.options.queues),
        )
        heartbeat.start()
        return heartbeat

    def held(self) -> list[Claim]:
        """Everything that this worker believes to hold. Called from the heartbeat's thread: copies only."""
        running = [one.claim for one in list(self._running.values())]
        return running + list(self._ready) + list(self._ends.claims) + list(self._writing)

    def _beat_from_thread(self, beat: Beat) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_beat, beat)

    def _hint(self, payload: str = "") -> None:
        if payload == "@" and self._heartbeat is not None:  # something for later: the beat tells when
            self._heartbeat.beat_now()
        self._wake.set()

    def _on_beat(self, beat: Beat) -> None:
        """What the heartbeat found, acted upon in the worker's own loop."""
        for job_id in beat.lost:
            if (running := self._running.get(job_id)) and running.context:
                running.context.lose()
        for job_id in beat.cancelled:
            self._stop_job(job_id, "it was asked to stop")
        if self._stopping.is_set():
            return
        if beat.can_claim:
            self._wake.set()
        if beat.can_rescue:
            self._aside(self._sweep(self._rescue))
        if beat.can_wake:
            self._aside(self._sweep(self._wake_forgotten))
        if beat.can_clean and cleaners():
            self._aside(self._sweep(self._clean))
        self._look_at(beat.next_due, self._promote)
        self._look_at(beat.next_poll, self._poll)

    def _stop_job(self, job_id: JobId, reason: str) -> None:
        running = self._running.get(job_id)
        if running is None or running.stop_reason is not None:
            return
        running.stop_reason = reason
        if running.context is not None:
            running.context.ask_to_stop(reason)
        if running.lane is not None and self._kinds[running.claim.kind].is_async:
            running.lane.cancel()

    def _look_at(self, wait: timedelta | None, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it when its time has come, if that is before the next beat; the next beat says it again otherwise."""
        if wait is not None and wait < self.options.beat and self._loop is not None:
            self._loop.call_later(max(0.0, wait.total_seconds()), lambda: self._aside(look()))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopping.is_set():
            work.close()
            return
        task = asyncio.create_task(work)
        self._side_tasks.add(task)  # a task that nobody refers to may vanish in the middle
        task.add_done_callback(self._side_tasks.discard)

    async def _sweep(self, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]) -> None:
        """Run a sweep; one that fails is tried again with the next beat, and must not take the worker along."""
        try:
            async with self._pool.connection() as conn:
                await work(conn)
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("sweep_failed", error=str(error), worker_id=self.id)

    async def _promote(self) -> None:
        async def work(conn: psycopg.AsyncConnection[Any]) -> None:
            if await promote.promote_due(conn):
                self._wake.set()

        await self._sweep(work)

    async def _poll(self) -> None:
        async def work(conn: psycopg.AsyncConnection[Any]) -> None:
            due = await claim_to_poll(conn, self.id, kinds=list(self._kinds), queues=self.options.queues)
            self._hand_out(due)

        await self._sweep(work)

    async def _rescue(self, conn: psycopg.AsyncConnection[Any]) -> None:
        rescued = await rescue(conn, actor=self.info.name)
        if rescued:
            log.warning("jobs_rescued", jobs=rescued, worker_id=self.id)
            self._wake.set()

    async def _wake_forgotten(self, conn: psycopg.AsyncConnection[Any]) -> None:
        await promote.wake_forgotten(conn)

    async def _clean(self, conn: psycopg.AsyncConnection[Any]) -> None:
        gone = await effects.clean(conn, cleaners())
        if gone:
            log.info("effects_cleaned", count=gone, worker_id=self.id)

    # ------------------------------------------------------------------------------------------------- leaving

    async def _grace(self) -> None:
        """Let what runs come to its end, and what has ended be written."""
        deadline = asyncio.get_running_loop().time() + self.options.grace.total_seconds()
        while (self._running or self._ends.claims or self._writing) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    async def _give_back(self) -> None:
        """Release what was claimed and not finished, without prejudice, and end the lease."""
        left = [*self._ready, *(running.claim for running in self._running.values())]
        try:
            async with asyncio.timeout(5), self._pool.connection() as conn:
                for claim in left:
                    try:
                        end = released_poll(claim, "shutdown") if claim.is_poll else released("shutdown")
                        await finish(conn, claim, end)
                    except ClaimLost as lost:
                        self._refused(lost)
                await resign(conn, self.id)
        except (psycopg.Error, PoolTimeout, TimeoutError) as error:
            log.warning("worker_database_lost", error=str(error), worker_id=self.id)

    async def run_by_id(self, job_id: JobId) -> bool:
        """Claim this very job and run it here and now; False if it could not be claimed, and nothing was called."""
        async with self._claim_link.use() as conn:
            one = await claim_by_id(conn, self.id, job_id)
        if one is None:
            return False
        self._hand_out([one])
        return True

