"""The worker: claims jobs in batches, runs them in lanes, writes their outcomes. Started by: the programs in apps/, tests.

Three things happen at once, each in its own task and on its own connection: `claiming.py` claims the next batch, lanes run the
attempts of the last one (`attempt.py`), and the completions of the one before are written. This module starts and stops them,
and acts on heartbeats. A transport connects the worker to the kernel: Postgres itself (`transports/direct.py`) or the HTTP API
(`transports/remote.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg

from holdfast.errors import HoldfastError, UsageError, WorkerBroken
from holdfast.jobs.client import Client
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.jobs.outcome import SHUTDOWN, End, cut_off, given_back
from holdfast.jobs.renew import Beat
from holdfast.jobs.worker_connections import shared_connections
from holdfast.telemetry.log import log, log_by_default
from holdfast.telemetry.workers import WorkerFigures, workers
from holdfast.worker.attempt import Attempts, Environment
from holdfast.worker.claiming import Claimer
from holdfast.worker.context import Lease
from holdfast.worker.duration_estimates import AHEAD
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolated.parent import Isolated
from holdfast.worker.job_counts import JobCounts
from holdfast.worker.kinds import Job, a_list_of_kinds, registered
from holdfast.worker.lanes import Lanes
from holdfast.worker.log_buffer import LogBuffer
from holdfast.worker.loop_lag import LoopLag
from holdfast.worker.options import WorkerOptions
from holdfast.worker.outcome_writer import OutcomeWriter
from holdfast.worker.poller import PollClock
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.presence import Presence
from holdfast.worker.sweeps import Sweeps
from holdfast.worker.tasks import cancel_all
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.interface import UNREACHABLE, Takes, Transport
from holdfast.worker.worker_info import describe_worker

UNTIL_CANCELLED = 5.0  # seconds
LONGEST_WAIT = 20 * AHEAD  # seconds for a lane: longer than a short pause of the database or the machine


class Worker:
    """A worker incarnation: a new id at every start, unless its keeper chose one.

    A keeper that renews the lease as well passes its own `lease`; claims are valid for as long as either says.
    """

    def __init__(
        self,
        url_or_transport: str | Transport,
        kinds: Iterable[Job[..., Any]] | None = None,
        options: WorkerOptions | None = None,
        *,
        worker_id: WorkerId | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.options = options = options or WorkerOptions()
        self.id = worker_id or WorkerId(str(uuid4()))
        self._kinds = {kind.kind: kind for kind in (registered().values() if kinds is None else a_list_of_kinds(kinds))}
        self._takes = Takes({name: kind.policy.version for name, kind in self._kinds.items()}, options.queues)
        self.info = describe_worker(self.id, options, self._takes)
        self._url = url_or_transport if isinstance(url_or_transport, str) else None
        self._transport: Transport = (
            Direct(url_or_transport, most=shared_connections(options.concurrency))
            if isinstance(url_or_transport, str)
            else url_or_transport
        )
        clock = PollClock.of(options.beat, options.poll, options.lease)
        self._lag = LoopLag(self._kinds.values())
        self._lanes = Lanes(self._kinds, options.concurrency, on_idle=self._on_idle_lane)
        self._heartbeat = Heartbeat(
            self._transport.pulse,
            self.info,
            self.held,
            lambda: self._takes,
            self._on_beat_from_thread,
            clock=clock,
            running=self._lanes.running_for,
            lease=lease,
            beside=[self._lag.watch, *self._presence()],
        )
        self._prefetch = Prefetch(self._lanes, self._takes, self._heartbeat.lease, most=options.most)
        self._writer = OutcomeWriter(self._transport, lambda kind: self._kinds[kind].policy.retry, self._on_end)
        self._environment = Environment(
            self.info.name,
            self._kinds,
            self._transport,
            self._heartbeat.lease,
            client=self._client,
            isolated=self._make_isolated(),
            log_buffer=LogBuffer(self._transport) if options.keep_logs else None,
        )
        self._attempts = Attempts(self._environment, self._lanes, self._prefetch, self._writer)
        self._claiming = Claimer(self._transport, self.id, self._lanes, self._prefetch, largest_batch=options.largest_batch)
        self._sweeps = Sweeps(
            self._transport,
            self.info,
            self._takes,
            lanes=self._lanes,
            prefetch=self._prefetch,
            claiming=self._claiming,
            until_next=timedelta(seconds=clock.longest),
        )
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_registered = False

    @property
    def completed(self) -> int:
        """How many jobs this worker has completed."""
        return self._writer.completed

    @property
    def loop_lag(self) -> float:
        """How many seconds the event loop is late: more than a moment means that a handler blocks it."""
        return self._lag.seconds

    @property
    def is_stopping(self) -> bool:
        """It was asked to stop."""
        return self._stopping.is_set()

    @property
    def is_lease_over(self) -> bool:
        """No heartbeat succeeded for so long that other workers may have its jobs."""
        return self._heartbeat.lease.is_over

    @property
    def is_idle(self) -> bool:
        """It holds nothing, and is neither claiming nor sweeping."""
        return not self.held() and self._claiming.is_idle and self._sweeps.is_idle

    @property
    def counts(self) -> JobCounts:
        """How many jobs this worker has taken, and how they ended."""
        return self._writer.counts(self._lanes.taken)

    def figures(self) -> WorkerFigures:
        """Figures for metrics. From any thread."""
        ending = len(self._attempts.completions.unwritten)
        jobs = {"running": self._lanes.running, "waiting": self._lanes.waiting, "ending": ending}
        return WorkerFigures(jobs, self._transport.connections(), self.loop_lag)

    # ------------------------------------------------------------------------------------------------- from start to end

    async def run(self, *, until_empty: bool = False) -> None:
        """Run jobs until `stop()`, or until no job is left; then release the held jobs and resign."""
        if not self._kinds:
            raise UsageError("this worker knows no kinds; import the modules whose functions are decorated with @job")
        if self._loop is not None:
            raise UsageError("this worker has run before; make a new Worker for every run")
        log_by_default()
        self._loop = asyncio.get_running_loop()
        try:
            await self._transport.open()
            await self._transport.publish(self.info, [kind.published for kind in self._kinds.values()])
            await self._transport.register(self.info, lease=self.options.lease)
        except BaseException:
            await self._transport.close()
            raise
        self.is_registered = True
        duties = [asyncio.create_task(duty) for duty in self._duties()]
        try:
            self._lag.start()
            self._heartbeat.start()
            if self._environment.log_buffer is not None:
                self._environment.log_buffer.open()
            workers.add(self.id, self.figures)
            log.info("worker_started", worker_id=self.id, kinds=sorted(self._kinds))
            await self._until_told(duties, until_empty=until_empty)
        finally:
            await self._leave(duties)

    def stop(self) -> None:
        """Claim no more; `run` returns when running jobs had their grace."""
        self._lanes.close()
        self._heartbeat.lease.stopping = True
        if self._environment.isolated is not None:
            self._environment.isolated.stopping()
        self._stopping.set()
        self._claiming.stop()

    def nudge(self) -> None:
        """Something was enqueued: claim now."""
        self._claiming.wake()

    async def run_by_id(self, job_id: JobId) -> bool:
        """Claim this job and run it here; False if it could not be claimed."""
        one = await self._transport.claim_by_id(self.id, self._takes, job_id)
        if one is None:
            log.info("job_skipped", job_id=job_id)
            return False
        self._lanes.hand_out([one])
        return True

    def held(self) -> list[Claim]:
        """Everything that this worker believes to hold. A copy, because the heartbeat's thread asks as well."""
        return [*self._lanes.held(), *self._attempts.completions.unwritten]

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._claiming.run(),
            self._attempts.completions.write_batches(),
            self._transport.listen(self._on_hint),
            *(self._attempts.run_lane() for _ in range(self._lanes.count)),
            *(self._attempts.run_poll_lane() for _ in range(self._lanes.poll_lanes)),
        ]

    async def _until_told(self, duties: list[asyncio.Task[None]], *, until_empty: bool) -> None:
        async def stopped() -> None:
            await self._stopping.wait()

        told = [asyncio.create_task(stopped())]
        if until_empty:
            told.append(asyncio.create_task(self._drained()))
        try:
            done, _ = await asyncio.wait([*told, *duties], return_when=asyncio.FIRST_COMPLETED)
            for duty in done:
                if duty.cancelled():
                    raise WorkerBroken("one of the worker's own tasks was cancelled from outside")
                duty.result()  # a duty that ended has failed: raise its error
        finally:
            for wait in told:
                wait.cancel()

    async def _drained(self) -> None:
        """Nothing was held, then a claim found nothing, and nothing had ended in between that could have left more to do."""
        while True:
            while not self.is_idle:  # first: else, where a claim takes long, the next would always be under way
                await asyncio.sleep(0.002)
            ended = self._lanes.ended
            await self._sweeps.run_now()
            await self._claiming.until_empty()
            if self._lanes.ended == ended and self.is_idle:
                return

    async def _leave(self, duties: list[asyncio.Task[None]]) -> None:
        self.stop()
        log.info("worker_stopping", worker_id=self.id, running=self._lanes.running)
        claiming = duties[0]
        grace_ends = asyncio.get_running_loop().time() + self.options.grace.total_seconds()
        await asyncio.wait([claiming], timeout=10)  # not cancelled: what it is just claiming would be lost
        left = await self._give_back([(held, given_back(held, SHUTDOWN)) for held in self._lanes.take_back()])
        await self._give_grace(grace_ends)
        left += self._cut_off()  # before the lanes are cancelled and forget what they ran
        if await cancel_all(duties, within=UNTIL_CANCELLED):
            log.warning("handler_ignores_cancel", worker_id=self.id, running=self._lanes.running)
        await self._claiming.close()
        await self._sweeps.close()
        if self._environment.isolated is not None:
            await self._environment.isolated.close()
        if self._environment.log_buffer is not None:
            await self._environment.log_buffer.close()  # before the attempts end whose lines are in it
        await self._give_back(left)
        self._lag.stop()
        workers.remove(self.id)
        await self._heartbeat.stop()
        await self._resign()  # after the last heartbeat, which would renew the lease
        await self._transport.close()
        log.info("worker_stopped", worker_id=self.id, completed=self.completed)

    # ------------------------------------------------------------------------------------------------- heartbeats and hints

    def _on_end(self, end: End) -> None:
        self._sweeps.follow(end)
        self._claiming.wake()

    def _on_idle_lane(self) -> None:
        self._claiming.on_idle_lane()

    def _on_hint(self, hint: str) -> None:
        if hint in ("@", ""):  # a delayed job, or hints before we listened were lost: the heartbeat finds out when
            self._heartbeat.beat_now()
        self._claiming.wake()

    def _on_beat_from_thread(self, beat: Beat) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_beat, beat)

    def _on_beat(self, beat: Beat) -> None:
        for attempt_id in beat.lost:
            self._lanes.lose(attempt_id)
        for attempt_id in beat.cancelled:
            self._lanes.stop(attempt_id, "it was asked to stop")
        if self._environment.isolated is not None:
            self._environment.isolated.renewed()
        if self._stopping.is_set():
            return
        self._prefetch.note_running()
        if self._lanes.waiting:
            self._sweeps.start(self._return_waiting())
        if beat.can_claim:
            self._claiming.wake()
        self._sweeps.act_on(beat)

    # ------------------------------------------------------------------------------------------------- giving back

    async def _return_waiting(self) -> None:
        """Return prefetched jobs that have waited for too long: another worker may have a free lane for them."""
        for held in self._lanes.take_back(LONGEST_WAIT):
            await self._writer.write(held, given_back(held, "its worker was busy with others"))

    async def _give_grace(self, until: float) -> None:
        """Let what runs finish, and what has finished be written."""
        completions = self._attempts.completions
        while (self._lanes.running or completions.unwritten) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.002)

    def _cut_off(self) -> list[tuple[Claim, End]]:
        """How each held job ends now: released, or failed if it has begun and its kind has `on_shutdown="fail"`."""
        begun = {running.claim.attempt_id for running in self._lanes.attempts()}
        return [
            (held, cut_off() if held.attempt_id in begun and self._fails_at_shutdown(held) else given_back(held, SHUTDOWN))
            for held in self.held()
        ]

    def _fails_at_shutdown(self, claim: Claim) -> bool:
        kind = self._kinds.get(claim.kind)
        return kind is not None and kind.policy.on_shutdown == "fail" and not claim.is_poll

    async def _give_back(self, ends: list[tuple[Claim, End]]) -> list[tuple[Claim, End]]:
        """Write these ends; return those that could not be written in time."""
        left = list(ends)
        async with self._without_waiting_long():
            for held, end in ends:
                await self._writer.give_back(held, end)
                left.pop(0)
        return left

    async def _resign(self) -> None:
        """End the lease: jobs that could not be released can be rescued immediately."""
        async with self._without_waiting_long():
            await self._transport.resign(self.id)

    @asynccontextmanager
    async def _without_waiting_long(self) -> AsyncIterator[None]:
        """At shutdown: what cannot be written now is left to the end of the lease."""
        try:
            async with asyncio.timeout(5):
                yield
        except (psycopg.Error, HoldfastError, TimeoutError, *UNREACHABLE) as error:
            log.warning("worker_database_lost", error=str(error), worker_id=self.id)

    def _presence(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        if self._url is None or not self.options.presence:
            return []
        return [Presence(self._url, lambda: [self.id], self.info.name).run]

    def _client(self) -> Client:
        """For handlers that enqueue: this worker may run what they enqueue."""
        client = self._transport.client()
        client.on_change = self.nudge
        return client

    def _make_isolated(self) -> Isolated | None:
        """Child processes for handlers that need one; they open their own connections, so there must be a database."""
        if self._url is not None and isinstance(self._transport, Direct):
            return Isolated(
                self._url, self._transport, self.info, self._writer, self._heartbeat.lease, self.nudge,
                keep_logs=self.options.keep_logs, max_memory=self.options.max_memory,
            )  # fmt: skip
        wanting = sorted(name for name, kind in self._kinds.items() if kind.policy.run_in == "process")
        if wanting:
            raise UsageError(
                f"{', '.join(wanting)}: run_in='process' needs a worker with a database address; a remote worker has none"
            )
        return None
