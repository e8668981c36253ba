"""The keeper: a small process that runs no handler, and so cannot be blocked, crashed or starved by one.

Called by: `holdfast worker run`, through apps/worker.py. It starts executors (`executor.py`), renews their leases beside
them, sees at once when one dies and gives its jobs back with the cause, and at shutdown leaves the database tidy in time,
whatever its executors are doing. It must run in the main thread: the kernel ends executors with the thread that started
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.database.pool import Link
from holdfast.errors import UsageError
from holdfast.jobs.begin import note_begun_blocked
from holdfast.jobs.model import JobId, WorkerId
from holdfast.jobs.release import Released, release_worker
from holdfast.jobs.renew import renew_leases, resign
from holdfast.jobs.rescue import rescue_worker
from holdfast.telemetry.log import log
from holdfast.telemetry.metrics import executor_deaths
from holdfast.worker.checkup import KeeperCheckup
from holdfast.worker.child import Child
from holdfast.worker.deaths import Death, OomCounter, cause_of_death, restart_delay
from holdfast.worker.heartbeat import SAFE_SHARE
from holdfast.worker.orders import Orders
from holdfast.worker.presence import Presence
from holdfast.worker.probe import Probe
from holdfast.worker.tally import Tally

T = TypeVar("T")

# At the end of the grace an executor stops its handlers and gives back by itself; one that cannot is ended a moment
# later, and what it held is given back for it. All of it within 2 s of the end of the grace.
LAST_MOMENT: Final = 0.8
A_KILL_TAKES: Final = 0.5  # at most, unless the kernel itself is stuck
TIDY: Final = 2.0
TIDY_IN_A_HURRY: Final = 1.0
MARGIN: Final = 1.0
BLOCKED: Final = 1.0  # seconds without a turn of an executor's event loop, which notes two turns a second
AGAIN: Final = 0.2  # pause before the database is asked once more
A_LONG_LIFE: Final = 5.0  # an executor that was ready for so long did not die of its start
UNREACHABLE = (psycopg.Error, OSError, TimeoutError)


def exit_code(done: Tally, *, once: bool, crashed: bool, gave_up: bool, signals: Sequence[int]) -> int:
    """0: everything that was begun has ended, or was given back unharmed. 1: a job was failed by the shutdown, or the
    database could not be told of the end; for `--once` also that its attempt failed, crashed or was given back.
    128 + n: a second signal n, and nobody had any time."""
    if len(signals) > 1:
        return 128 + signals[1]
    if once and (done.failed or done.given_back or crashed):
        return 1
    return 1 if done.cut_off or gave_up else 0


class Keeper:
    """Keeps executors alive, and their jobs honest."""

    def __init__(
        self, orders: Orders, *, executors: int = 1, http: str | None = None, wanted_revision: str | None = None
    ) -> None:
        self.done = Tally()
        self._orders, self._executors = orders, executors
        self._name = orders.name or "keeper"
        self._beats, self._acts = Link(orders.url), Link(orders.url)
        self._children: list[Child] = []
        self._signals: list[int] = []
        self._told, self._hurry = asyncio.Event(), asyncio.Event()
        self._asides: set[asyncio.Task[None]] = set()
        self._oom = OomCounter()
        self._crash_at = orders.crash_at
        self._crashed = self._gave_up = False
        self._http = http
        self._checkup = KeeperCheckup(
            orders.url, self._children, self._told.is_set, executors=executors, wanted_revision=wanted_revision
        )

    # ------------------------------------------------------------------------------------------------- the story

    async def run(self) -> int:
        """Keep the executors until they are done or a signal comes; the exit code."""
        probe = None if self._http is None else Probe(self._http, self._checkup)
        self._hear_signals()
        beating = [asyncio.create_task(duty) for duty in (self._beat_for_ever(), self._be_present())]
        tending = [asyncio.create_task(self._tend(number)) for number in range(1, self._executors + 1)]
        try:
            await self._until_done_or_told(tending)
        finally:
            await self._shut_down(tending)
            for duty in beating:
                duty.cancel()
            await asyncio.gather(*beating, return_exceptions=True)
            if probe is not None:
                probe.close()
            for link in (self._beats, self._acts, self._checkup):
                await link.close()
        for tended in tending:
            if tended.done():
                tended.result()  # raises why an executor could not start
        return self._conclude()

    async def _until_done_or_told(self, tending: list[asyncio.Task[None]]) -> None:
        told = asyncio.create_task(self._told.wait())
        all_done = asyncio.create_task(asyncio.wait(tending, return_when=asyncio.FIRST_EXCEPTION))
        await asyncio.wait([told, all_done], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        all_done.cancel()

    def _conclude(self) -> int:
        once = self._orders.mode == "once"
        code = exit_code(self.done, once=once, crashed=self._crashed, gave_up=self._gave_up, signals=self._signals)
        if once and not self.done.taken and not self._crashed and not self._signals:
            log.info("no_work", name=self._name, queues=list(self._orders.queues))
        log.info("keeper_stopped", name=self._name, exit_code=code, **asdict(self.done))
        return code

    # ------------------------------------------------------------------------------------------------- signals

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and shells in the background have it
                loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        self._told.set()
        if len(self._signals) > 1:
            self._hurry.set()

    def _reap(self) -> None:
        """Somebody died. As the first process of a container we also inherit whatever nobody else waits for."""
        for child in self._children:
            child.look()
        if os.getpid() == 1:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        ours = {child.pid for child in self._children if child.is_alive}
        try:
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in ours:
                os.waitpid(dead.si_pid, os.WNOHANG)
        except ChildProcessError:
            return

    # ------------------------------------------------------------------------------------------------- executors

    async def _tend(self, number: int) -> None:
        """Have one executor at work, and another when it dies."""
        short_lives = 0
        while not self._told.is_set():
            child = self._start()
            returncode = await child.died
            self._children.remove(child)
            self._checkup.bury(child)
            if child.refusal is not None:
                raise UsageError(child.refusal)
            if child.tally is not None:
                self.done += child.tally
                return
            if child.was_ended_by_us:
                return
            self._mourn(child, number, returncode)
            if self._orders.mode == "once":
                return
            lived = time.monotonic() - child.ready_at if child.ready_at is not None else 0.0
            short_lives = 0 if lived > A_LONG_LIFE else short_lives + 1
            await self._pause(restart_delay(short_lives))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), seconds)

    def _start(self) -> Child:
        """A new incarnation. Only the first is armed to crash, so that what follows a crash can be watched."""
        orders = replace(self._orders, crash_at=self._crash_at)
        self._crash_at = None
        child = Child(WorkerId(str(uuid4())), orders, self._on_ready, self._checkup.note)
        crashpoint("keeper.after_start")
        self._children.append(child)
        return child

    def _on_ready(self, child: Child) -> None:
        log.info("executor_ready", pid=child.pid, worker_id=child.id, kinds=child.kinds)

    def _mourn(self, child: Child, number: int, returncode: int) -> None:
        self._crashed = True
        death = cause_of_death(returncode, oom_kills_rose=self._oom.rose())
        cause, said = death.cause, child.trouble or death.error
        executor_deaths.labels(cause).inc()
        log.error("executor_died", executor=number, pid=child.pid, worker_id=child.id, cause=cause, error=said)
        self._aside(self._give_to_others(child, death))

    async def _give_to_others(self, child: Child, death: Death) -> None:
        """What a dead executor held can run again at once. Until the database hears of it, the lease is the second way."""
        jobs = await self._insist(partial(self._rescue, child, death))
        if jobs:
            log.warning("jobs_rescued", jobs=jobs, worker_id=child.id, cause=death.cause)

    async def _rescue(self, child: Child, death: Death, conn: psycopg.AsyncConnection[Any]) -> list[JobId]:
        async with conn.transaction():
            jobs = await rescue_worker(
                conn, child.id, cause=death.cause, error=death.error, actor=self._name, begun=child.begun
            )
            await resign(conn, child.id)  # what a claim of its last moment still brings is found by whoever beats next
        return jobs

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    # ------------------------------------------------------------------------------------------------- beats

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._orders.beat * random.uniform(0.9, 1.0))  # noqa: S311 - spreads the beats of a fleet
            await self._beat()

    async def _be_present(self) -> None:
        """Have a session that stands for the executors: it ends when this process does, and they end with it."""
        if self._orders.presence:
            await Presence(self._orders.url, lambda: [child.id for child in self._ready()], self._name).run()

    def _ready(self) -> list[Child]:
        return [child for child in self._children if child.is_alive and child.ready_at is not None]

    async def _beat(self) -> None:
        """Renew the leases of all executors that live. One that is stopped does not run, and must lose its jobs in time."""
        if self._http is not None:
            self._checkup.ask_all()
        self._oom.look()
        living = [child for child in self._ready() if not child.is_stopped]
        if not living:
            return
        asked_at = time.monotonic()  # before the question: an answer that took long must not stretch the lease
        lease = timedelta(seconds=self._orders.lease)
        try:
            async with asyncio.timeout(self._orders.beat + 2), self._beats as conn:
                renewed = await renew_leases(conn, [child.id for child in living], lease=lease)
                await self._note_begun(conn, [child for child in living if child.id in renewed])
        except UNREACHABLE as error:
            log.warning("heartbeat_failed", error=str(error), worker_id=[child.id for child in living])
            return
        for child in living:
            if child.is_alive and child.id in renewed:
                child.board.keep_until(asked_at + self._orders.lease * SAFE_SHARE, time.monotonic())
                if child.blocked_for > self._orders.lease:
                    log.warning("executor_blocked", pid=child.pid, worker_id=child.id, seconds=round(child.blocked_for))

    async def _note_begun(self, conn: psycopg.AsyncConnection[Any], renewed: Sequence[Child]) -> None:
        """Write what runs in executors that are blocked: where the GIL is held, no beat of theirs can. Without it, a job that
        blocks for ever would have no deadline."""
        for child in renewed:
            if child.is_alive and (blocked_for := child.blocked_for) > BLOCKED and (jobs := child.runs):
                await note_begun_blocked(conn, child.id, jobs, seconds=blocked_for)

    # ------------------------------------------------------------------------------------------------- shutdown

    async def _shut_down(self, tending: list[asyncio.Task[None]]) -> None:
        """Running jobs get their grace; then whoever is left is ended and its jobs are given back, in bounded time."""
        self._told.set()
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + self._orders.grace
        children = list(self._children)
        watchdog = _end_this_process_in(self._orders.grace + TIDY + MARGIN)
        self._tell_to_stop(children)
        await self._until_over(tending, grace_ends + LAST_MOMENT)
        gone_at = loop.time() + TIDY_IN_A_HURRY if self._hurry.is_set() else grace_ends + TIDY
        for child in children:
            if child.is_alive:
                log.warning("executor_cut_off", pid=child.pid, worker_id=child.id)
                child.kill()
        await asyncio.wait(tending, timeout=A_KILL_TAKES)
        crashpoint("keeper.before_release")
        try:
            async with asyncio.timeout_at(gone_at):
                await self._give_back([child for child in children if child.was_ended_by_us])
                await asyncio.gather(*self._asides)
        except TimeoutError:
            self._gave_up = True
            log.error("keeper_gave_up", name=self._name, error="the database did not answer in time; the leases will tell it")
            return  # and the watchdog stays: whatever hangs on that database must not hold us up
        watchdog.cancel()

    def _tell_to_stop(self, children: Sequence[Child]) -> None:
        if children:
            log.info("keeper_stopping", name=self._name, executors=len(children), grace_s=self._orders.grace)
        for child in children:
            if child.ready_at is None:
                child.kill()  # it holds nothing yet
            else:
                child.tell_to_stop()

    async def _until_over(self, tending: list[asyncio.Task[None]], at: float) -> None:
        """Until every executor has ended, but not longer than until then, nor on after a second signal."""
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.create_task(asyncio.wait(tending))
        timeout = max(0.0, at - asyncio.get_running_loop().time())
        await asyncio.wait([hurry, ended], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        ended.cancel()

    async def _give_back(self, cut_off: list[Child]) -> None:
        """From our own connection, under the fence: what a process wrote before it was ended counts."""
        for child in cut_off:
            given = await self._insist(partial(self._release, child))
            self.done += Tally(given_back=len(given.released), cut_off=len(given.failed))
            if given.released or given.failed:
                log.warning("jobs_given_back", worker_id=child.id, released=given.released, failed=given.failed)

    async def _release(self, child: Child, conn: psycopg.AsyncConnection[Any]) -> Released:
        async with conn.transaction():
            given = await release_worker(conn, child.id, failing=child.failing, begun=child.begun, actor=self._name)
            await resign(conn, child.id)
        return given

    async def _insist(self, act: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Do it, however often the database has to be asked."""
        while True:
            try:
                async with asyncio.timeout(self._orders.lease), self._acts as conn:
                    return await act(conn)
            except UNREACHABLE as error:
                log.warning("worker_database_lost", error=str(error).strip(), name=self._name)
                await asyncio.sleep(AGAIN)


def _end_this_process_in(seconds: float) -> threading.Timer:
    """The last resort, from a thread: nothing that this process may be stuck in can keep it beyond its time."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()
    return timer
