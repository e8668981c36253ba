"""The worker: claims jobs in batches, runs them in lanes, has their ends written. Started by: the programs in apps/, tests.

Three things happen at once, each in its own task and on its own connection: the next batch is claimed, the handlers of
the last one run (`lanes.py`), and the ends of the one before are written (`ends.py`). What lies between the worker and
the kernel is its transport: Postgres itself (`direct.py`) or the HTTP API (`remote.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg

from holdfast.errors import ClaimLost, HoldfastError, UsageError, WorkerBroken
from holdfast.jobs.client import Client
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.jobs.outcome import SHUTDOWN, End, cut_off
from holdfast.jobs.renew import Beat
from holdfast.jobs.states import Move
from holdfast.jobs.workers import shared_connections
from holdfast.telemetry.log import log
from holdfast.telemetry.workers import WorkerFigures, workers
from holdfast.worker.claiming import Claiming
from holdfast.worker.context import Lease
from holdfast.worker.direct import Direct
from holdfast.worker.ends import Ends, refused
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.introduction import introduce
from holdfast.worker.isolated import Isolated
from holdfast.worker.kinds import Job, registered
from holdfast.worker.lag import LoopLag
from holdfast.worker.lanes import Lanes, given_back
from holdfast.worker.logbook import Logbook
from holdfast.worker.options import WorkerOptions
from holdfast.worker.pace import AHEAD
from holdfast.worker.poller import Clock
from holdfast.worker.presence import Presence
from holdfast.worker.sweeps import Sweeps
from holdfast.worker.tally import Tally
from holdfast.worker.tasks import cancel_all
from holdfast.worker.transport import UNREACHABLE, Running, Takes, Transport

UNTIL_CANCELLED = 5.0  # seconds
LONGEST_WAIT = 20 * AHEAD  # seconds for a lane: more than a pause of the database or the machine should cost


class Worker:
    """A worker incarnation: a new id at every start, unless its keeper chose one.

    `lease` may be handed in by somebody who renews it as well; a claim is good for as long as either says.
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
        self._kinds = {kind.kind: kind for kind in (registered().values() if kinds is None else kinds)}
        self._all_that_is_known = Takes({name: kind.policy.version for name, kind in self._kinds.items()}, options.queues)
        self.info = introduce(self.id, options, self._all_that_is_known)
        self._transport: Transport = (
            Direct(url_or_transport, most=shared_connections(options.concurrency))
            if isinstance(url_or_transport, str)
            else url_or_transport
        )
        clock = Clock.of(options.beat, options.poll, options.lease)
        self._lag = LoopLag(self._kinds.values())
        self._heartbeat = Heartbeat(
            self._transport.pulse,
            self.info,
            self.held,
            self._takes,
            self._on_beat_from_thread,
            clock=clock,
            running=self._running_for,
            lease=lease,
            beside=[self._lag.watch, *self._presence(url_or_transport)],
        )
        self._ends = Ends(self._transport, lambda kind: self._kinds[kind].policy.retry, self._on_end)
        self._isolated = self._make_isolated(url_or_transport)
        self._logbook = Logbook(self._transport) if options.keep_logs else None
        self._lanes = self._make_lanes()
        self._stopping = asyncio.Event()
        self._claiming = Claiming(self._transport, self.id, self._lanes, options.largest_batch, self._stopping)
        self._wake, self._saw_empty = self._claiming.wake, self._claiming.saw_empty
        self._sweeps = Sweeps(
            self._transport,
            self.info,
            takes=self._takes,
            until_next=timedelta(seconds=clock.longest),
            lanes=self._lanes,
            taking=self._claiming.taking,
            nudge=self.nudge,
        )
        self._given_back = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_registered = False

    @property
    def completed(self) -> int:
        """How many jobs this worker has completed."""
        return self._ends.completed

    @property
    def loop_lag(self) -> float:
        """How many seconds the event loop is late: more than a moment means that a handler blocks it."""
        return self._lag.seconds

    @property
    def is_stopping(self) -> bool:
        """It was told to end."""
        return self._stopping.is_set()

    @property
    def is_lease_over(self) -> bool:
        """No beat got through for so long that others may have its jobs."""
        return self._heartbeat.lease.is_over

    @property
    def tally(self) -> Tally:
        """What this worker has done so far."""
        ends = self._ends
        return Tally(self._lanes.taken, ends.completed, ends.failed, self._given_back, ends.cut_off)

    def figures(self) -> WorkerFigures:
        """What it is at. From any thread."""
        jobs = {"running": self._lanes.running, "waiting": self._lanes.waiting, "ending": len(self._ends.unwritten)}
        return WorkerFigures(jobs, self._transport.connections(), self.loop_lag)

    # ------------------------------------------------------------------------------------------------- the story

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`, or until there is nothing left to do; then give back what is held and resign."""
        if not self._kinds:
            raise UsageError("this worker knows no kinds; import the modules whose functions are decorated with @job")
        if self._loop is not None:
            raise UsageError("this worker has run before, and its lease has an end; make a new Worker for every run")
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
            if self._logbook is not None:
                self._logbook.open()
            workers.add(self.id, self.figures)
            log.info("worker_started", worker_id=self.id, kinds=sorted(self._kinds))
            await self._until_told(duties, until_empty=until_empty)
        finally:
            await self._leave(duties)

    def stop(self) -> None:
        """Claim no more; `run` returns when running jobs had their grace."""
        self._lanes.close()
        self._heartbeat.lease.stopping = True
        if self._isolated is not None:
            self._isolated.stopping()
        self._stopping.set()
        self._wake.set()

    def nudge(self) -> None:
        """Something was enqueued: look now."""
        self._claiming.tell()

    async def run_by_id(self, job_id: JobId) -> bool:
        """Claim this very job and run it here; False if it could not be claimed, and then nothing was called."""
        one = await self._transport.claim_by_id(self.id, self._takes(), job_id)
        if one is None:
            log.warning("job_skipped", job_id=job_id)
            return False
        self._lanes.hand_out([one])
        return True

    def held(self) -> list[Claim]:
        """Everything that this worker believes to hold. Called from the heartbeat's thread, so it copies."""
        return [*self._lanes.held(), *self._ends.unwritten]

    def _running_for(self) -> list[Running]:
        return self._lanes.running_for()

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        return [self._claiming.run(), self._ends.write_batches(), self._transport.listen(self._on_hint), *self._lanes.all()]

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
                    raise WorkerBroken("one of its own tasks was cancelled from outside")
                duty.result()  # a duty that ended has failed: raise what it raised
        finally:
            for wait in told:
                wait.cancel()

    async def _drained(self) -> None:
        """Nothing was held, then a claim found nothing, and nothing had ended in between that could have left more to do."""
        while True:
            while not self._is_quiet():  # first: else, where a claim takes long, the next would always be under way
                await asyncio.sleep(0.002)
            ended = self._lanes.ended
            await self._sweeps.look_around()
            self._saw_empty.clear()
            self._wake.set()
            await self._saw_empty.wait()
            if self._lanes.ended == ended and self._is_quiet():
                return

    def _is_quiet(self) -> bool:
        return not self.held() and self._claiming.is_quiet and self._sweeps.is_quiet

    async def _leave(self, duties: list[asyncio.Task[None]]) -> None:
        self.stop()
        log.info("worker_stopping", worker_id=self.id, running=self._lanes.running)
        claiming = duties[0]
        grace_ends = asyncio.get_running_loop().time() + self.options.grace.total_seconds()
        await asyncio.wait([claiming], timeout=10)  # not cancelled: what it is just claiming would be nobody's
        left = await self._give_back([(held, given_back(held, SHUTDOWN)) for held in self._lanes.take_back()])
        await self._give_grace(grace_ends)
        left += self._cut_off()  # before the lanes are cancelled and forget what they were at
        if await cancel_all(duties, within=UNTIL_CANCELLED):
            log.warning("handler_ignores_cancel", worker_id=self.id, running=self._lanes.running)
        await self._claiming.close()
        await self._sweeps.close()
        if self._isolated is not None:
            await self._isolated.close()
        if self._logbook is not None:
            await self._logbook.close()  # before the attempts end whose lines are in it
        await self._give_back(left)
        self._lag.stop()
        workers.remove(self.id)
        await self._heartbeat.stop()
        await self._resign()  # after the last beat, which would make the lease good again
        await self._transport.close()
        log.info("worker_stopped", worker_id=self.id, completed=self.completed)

    def _takes(self) -> Takes:
        return self._all_that_is_known

    # ------------------------------------------------------------------------------------------------- beats and hints

    def _on_end(self, end: End) -> None:
        self._sweeps.follow(end)
        self._wake.set()

    def _on_free_lane(self) -> None:
        self._claiming.on_free_lane()

    def _on_hint(self, hint: str) -> None:
        if hint in ("@", ""):  # something for later, or hints before we listened were lost: the beat tells when
            self._heartbeat.beat_now()
        self._claiming.tell()

    def _on_beat_from_thread(self, beat: Beat) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_beat, beat)

    def _on_beat(self, beat: Beat) -> None:
        for attempt_id in beat.lost:
            self._lanes.lose(attempt_id)
        for attempt_id in beat.cancelled:
            self._lanes.stop(attempt_id, "it was asked to stop")
        if self._isolated is not None:
            self._isolated.renewed()
        if self._stopping.is_set():
            return
        self._lanes.note_pace()
        if self._lanes.waiting:
            self._sweeps.aside(self._return_waiting())
        if beat.can_claim:
            self._claiming.tell()
        self._sweeps.act_on(beat)

    # ------------------------------------------------------------------------------------------------- giving back

    async def _return_waiting(self) -> None:
        """Jobs that were held ahead wait for longer than they should: another worker may have a free lane for them."""
        for held in self._lanes.take_back(LONGEST_WAIT):
            await self._ends.write(held, given_back(held, "its worker was busy with others"))

    async def _give_grace(self, until: float) -> None:
        """Let what runs come to its end, and what has ended be written."""
        while (self._lanes.running or self._ends.unwritten) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.002)

    def _cut_off(self) -> list[tuple[Claim, End]]:
        """How everything that is still held has to end now: given back, or failed where it has begun and its kind says so."""
        begun = {running.attempt_id for running in self._lanes.begun()}
        return [
            (held, cut_off() if held.attempt_id in begun and self._fails_at_shutdown(held) else given_back(held, SHUTDOWN))
            for held in self.held()
        ]

    def _fails_at_shutdown(self, claim: Claim) -> bool:
        kind = self._kinds.get(claim.kind)
        return kind is not None and kind.policy.on_shutdown == "fail" and not claim.is_poll

    async def _give_back(self, ends: list[tuple[Claim, End]]) -> list[tuple[Claim, End]]:
        """End these, which have not come to an end by themselves; those that could not be written in time."""
        left = list(ends)
        async with self._without_waiting_long():
            for held, end in ends:
                try:
                    await self._transport.finish(held, end)
                    self._given_back += end.move is Move.RELEASE
                    self._ends.cut_off += end.cause == SHUTDOWN
                except ClaimLost as lost:
                    refused(lost)
                left.pop(0)
        return left

    async def _resign(self) -> None:
        """End the lease: whatever could not be given back can be rescued at once."""
        async with self._without_waiting_long():
            await self._transport.resign(self.id)

    @asynccontextmanager
    async def _without_waiting_long(self) -> AsyncIterator[None]:
        """On the way out: what does not work now is left to the end of the lease."""
        try:
            async with asyncio.timeout(5):
                yield
        except (psycopg.Error, HoldfastError, TimeoutError, *UNREACHABLE) as error:
            log.warning("worker_database_lost", error=str(error), worker_id=self.id)

    def _presence(self, url: str | Transport) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [Presence(url, lambda: [self.id], self.info.name).run] if self.options.presence and isinstance(url, str) else []

    def _make_lanes(self) -> Lanes:
        return Lanes(
            self._kinds,
            self._transport,
            self._ends,
            self._heartbeat.lease,
            count=self.options.concurrency,
            name=self.info.name,
            most=self.options.most,
            takes=self._takes,
            hungry=self._on_free_lane,
            client=self._client,
            isolated=self._isolated,
            logbook=self._logbook,
        )

    def _client(self) -> Client:
        """For handlers that enqueue: what they make may be for us."""
        client = self._transport.client()
        client.on_change = self.nudge
        return client

    def _make_isolated(self, url: str | Transport) -> Isolated | None:
        """Processes for handlers that need one; they open connections of their own, so there must be a database to open."""
        if isinstance(url, str) and isinstance(self._transport, Direct):
            return Isolated(
                url, self._transport, self.info, self._ends, self._heartbeat.lease, self.nudge,
                keep_logs=self.options.keep_logs, max_memory=self.options.max_memory,
            )  # fmt: skip
        wanting = sorted(name for name, kind in self._kinds.items() if kind.policy.run_in == "process")
        if wanting:
            raise UsageError(f"{', '.join(wanting)} wants a process of its own, which needs a database address of its own too")
        return None
