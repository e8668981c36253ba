"""The keeper: a small process that runs no handlers, so no handler can block, crash or starve it.

Called by: `holdfast worker run`, through apps/worker.py. It starts executors (`executor.py`) and renews their leases, too. When
an executor dies, it releases the jobs at once, with the cause. At shutdown it releases all jobs in bounded time, whatever the
executors do. It must run in the main thread: the kernel kills executors when the thread that started them ends.
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
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.database.pool import Link, is_permanent
from holdfast.errors import UsageError
from holdfast.jobs.begin import note_begun_blocked
from holdfast.jobs.model import JobId, WorkerId
from holdfast.jobs.release import Released, release_worker
from holdfast.jobs.renew import renew_leases, resign
from holdfast.jobs.rescue import rescue_worker
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log
from holdfast.telemetry.metrics import executor_deaths
from holdfast.worker.checkup import KeeperCheckup
from holdfast.worker.exit_causes import ExitCause, OomCounter, exit_cause, restart_delay
from holdfast.worker.heartbeat import SAFE_SHARE
from holdfast.worker.job_counts import JobCounts
from holdfast.worker.keeper.executor_process import ExecutorProcess
from holdfast.worker.keeper.messages import ExecutorConfig
from holdfast.worker.presence import Presence
from holdfast.worker.probe import Probe

T = TypeVar("T")
Act = Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]

# At the end of the grace period an executor stops its handlers and releases its jobs. If it cannot, the keeper kills it shortly
# after and releases its jobs. All within 2 s after the grace period. In seconds:
KILL_AFTER_GRACE: Final = 0.8
KILL_TAKES: Final = 0.5  # at most, unless the operating system itself hangs
RELEASE_TIMEOUT: Final = 2.0
RELEASE_TIMEOUT_AFTER_SECOND_SIGNAL: Final = 1.0
MARGIN: Final = 1.0
BLOCKED: Final = 1.0  # without a note of the executor's event loop, which writes two in a second
RETRY_AFTER: Final = 0.2  # pause before the next attempt to reach the database
LONG_LIFE: Final = 5.0  # an executor that was ready for longer did not fail because of its start
UNREACHABLE = (psycopg.Error, OSError, TimeoutError)


def exit_code(done: JobCounts, *, once: bool, crashed: bool, gave_up: bool, signals: Sequence[int]) -> int:
    """0: every job has ended or was released. 1: the shutdown failed a job, or the jobs could not be released in the database;
    with `--once` also if its attempt failed, crashed or was released. 128 + n: a second signal n ended the grace period."""
    if len(signals) > 1:
        return 128 + signals[1]
    if once and (done.failed or done.given_back or crashed):
        return 1
    return 1 if done.cut_off or gave_up else 0


class Keeper:
    """Starts, restarts and stops executors, and releases the jobs of those that died."""

    def __init__(
        self, config: ExecutorConfig, *, executors: int = 1, http: str | None = None, wanted_revision: str | None = None
    ) -> None:
        self.done = JobCounts()
        self._config, self._executors = config, executors
        options = config.options
        self._beat_seconds, self._lease, self._grace = (
            span.total_seconds() for span in (options.beat, options.lease, options.grace)
        )
        self._name = options.name or "keeper"
        self._beats, self._acts = Link(config.url), Link(config.url)
        self._children: list[ExecutorProcess] = []
        self._signals: list[int] = []
        self._stopping, self._second_signal = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._oom = OomCounter()
        self._crash_at = config.crash_at
        self._crashed = self._gave_up = False
        self._http = http
        self._checkup = KeeperCheckup(
            config.url, self._children, self._stopping.is_set, executors=executors, wanted_revision=wanted_revision
        )

    # ------------------------------------------------------------------------------------------------- from start to exit

    async def run(self) -> int:
        """Supervise the executors until they are done or a signal arrives. Returns the exit code."""
        probe = None if self._http is None else Probe(self._http, self._checkup)
        self._handle_signals()
        background = [asyncio.create_task(duty) for duty in (self._renew_leases_forever(), self._show_presence())]
        supervisors = [asyncio.create_task(self._supervise(number)) for number in range(1, self._executors + 1)]
        try:
            await self._until_done_or_stopping(supervisors)
        finally:
            await self._shut_down(supervisors)
            for duty in background:
                duty.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            if probe is not None:
                probe.close()
            for link in (self._beats, self._acts, self._checkup):
                await link.close()
        for supervisor in supervisors:
            if supervisor.done():
                supervisor.result()  # raises the error of an executor that could not start
        return self._exit_code()

    async def _until_done_or_stopping(self, tasks: list[asyncio.Task[None]]) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        all_done = asyncio.create_task(asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))
        await asyncio.wait([stopping, all_done], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        all_done.cancel()

    def _exit_code(self) -> int:
        once = self._config.mode == "once"
        code = exit_code(self.done, once=once, crashed=self._crashed, gave_up=self._gave_up, signals=self._signals)
        if once and not self.done.taken and not self._crashed and not self._signals:
            log.info("no_work", name=self._name, queues=list(self._config.options.queues))
        log.info("keeper_stopped", name=self._name, exit_code=code, **asdict(self.done))
        return code

    # ------------------------------------------------------------------------------------------------- signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup, and by shells for background processes
                loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        self._stopping.set()
        if len(self._signals) > 1:
            self._second_signal.set()

    def _reap(self) -> None:
        """A child process has ended. As process 1 of a container the keeper also has to reap orphans."""
        for child in self._children:
            child.reap_if_exited()
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

    async def _supervise(self, number: int) -> None:
        """Run an executor, and start another when it dies."""
        short_lives = 0
        while not self._stopping.is_set():
            child = self._start()
            returncode = await child.exited
            self._children.remove(child)
            self._checkup.retire(child)
            if child.start_error is not None:
                raise UsageError(child.start_error)
            if child.counts is not None:
                self.done += child.counts
                return
            if child.was_killed_by_us:
                return
            rescue = self._handle_exit(child, number, returncode)
            if self._config.mode == "once":
                return
            if self._config.mode == "drain":  # until its jobs are pending again, the next executor would find nothing
                await self._until_done_or_stopping([rescue])
            lived = time.monotonic() - child.ready_at if child.ready_at is not None else 0.0
            short_lives = 0 if lived > LONG_LIFE else short_lives + 1
            await self._pause(restart_delay(short_lives))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _start(self) -> ExecutorProcess:
        """Start a new executor. Only the first has the crash point, so that tests can observe what follows a crash."""
        config = replace(self._config, crash_at=self._crash_at)
        self._crash_at = None
        child = ExecutorProcess(WorkerId(str(uuid4())), config, self._on_ready, self._checkup.note)
        crashpoint("keeper.after_start")
        self._children.append(child)
        return child

    def _on_ready(self, child: ExecutorProcess) -> None:
        log.info("executor_ready", pid=child.pid, worker_id=child.id, kinds=child.kinds)

    def _handle_exit(self, child: ExecutorProcess, number: int, returncode: int) -> asyncio.Task[None]:
        """Log it, and begin to rescue its jobs."""
        self._crashed = True
        ended = exit_cause(returncode, oom_kills_rose=self._oom.rose())
        error = child.database_error or ended.error
        executor_deaths.labels(ended.cause).inc()
        log.error("executor_died", executor=number, pid=child.pid, worker_id=child.id, cause=ended.cause, error=error)
        return self._start_task(self._rescue_jobs(child, ended))

    async def _rescue_jobs(self, child: ExecutorProcess, ended: ExitCause) -> None:
        """Make the jobs of a dead executor pending at once. While the database is unreachable, its lease goes on to expire."""
        jobs = await self._write_for(child, partial(self._rescue, child, ended))
        if jobs:
            log.warning("jobs_rescued", jobs=jobs, worker_id=child.id, cause=ended.cause)

    async def _rescue(self, child: ExecutorProcess, ended: ExitCause, conn: psycopg.AsyncConnection[Any]) -> list[JobId]:
        async with conn.transaction():
            jobs = await rescue_worker(
                conn, child.id, cause=ended.cause, error=ended.error, actor=self._name, begun=child.begun
            )
            await resign(conn, child.id)  # a job that its last claim still takes is found by the next heartbeat of any worker
        return jobs

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------------------------------------- heartbeats

    async def _renew_leases_forever(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds * random.uniform(0.9, 1.0))  # noqa: S311 - spreads the heartbeats of a fleet
            await self._renew_leases()

    async def _show_presence(self) -> None:
        """Keep a session open for the executors: it ends when this process does, and they end with it."""
        if self._config.options.presence:
            await Presence(self._config.url, lambda: [child.id for child in self._ready()], self._name).run()

    def _ready(self) -> list[ExecutorProcess]:
        return [child for child in self._children if child.is_alive and child.ready_at is not None]

    async def _renew_leases(self) -> None:
        """Renew the leases of all running executors. One that is stopped (SIGSTOP) does not run, and must lose its jobs."""
        if self._http is not None:
            self._checkup.ask_all()
        self._oom.poll()
        living = [child for child in self._ready() if not child.is_stopped]
        if not living:
            return
        asked_at = time.monotonic()  # before the query: a slow answer must not extend the lease
        lease = self._config.options.lease
        try:
            async with asyncio.timeout(self._beat_seconds + 2), self._beats as conn:
                renewed = await renew_leases(conn, [child.id for child in living], lease=lease)
                await self._note_begun(conn, [child for child in living if child.id in renewed])
        except UNREACHABLE as error:
            log.warning("heartbeat_failed", error=str(error), worker_id=[child.id for child in living])
            return
        for child in living:
            if child.is_alive and child.id in renewed:
                child.page.extend_lease(asked_at + self._lease * SAFE_SHARE, time.monotonic())
                if child.blocked_for > self._lease:
                    log.warning("executor_blocked", pid=child.pid, worker_id=child.id, seconds=round(child.blocked_for))

    async def _note_begun(self, conn: psycopg.AsyncConnection[Any], renewed: Sequence[ExecutorProcess]) -> None:
        """Write which jobs have begun in blocked executors: while a handler holds the GIL, their own heartbeat cannot. Without
        it, a job that blocks forever would have no deadline."""
        for child in renewed:
            if child.is_alive and (blocked_for := child.blocked_for) > BLOCKED and (tokens := child.running):
                await note_begun_blocked(conn, child.id, tokens, seconds=blocked_for)

    # ------------------------------------------------------------------------------------------------- shutdown

    async def _shut_down(self, supervisors: list[asyncio.Task[None]]) -> None:
        """Give running jobs the grace period, then kill the executors that are left and release their jobs, in bounded time."""
        self._stopping.set()
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + self._grace
        children = list(self._children)
        watchdog = _exit_in(self._grace + RELEASE_TIMEOUT + MARGIN)
        self._ask_to_stop(children)
        await self._until_ended(supervisors, grace_ends + KILL_AFTER_GRACE)
        hurry = self._second_signal.is_set()
        release_until = loop.time() + RELEASE_TIMEOUT_AFTER_SECOND_SIGNAL if hurry else grace_ends + RELEASE_TIMEOUT
        for child in children:
            if child.is_alive:
                log.warning("executor_cut_off", pid=child.pid, worker_id=child.id)
                child.kill()
        await asyncio.wait(supervisors, timeout=KILL_TAKES)
        crashpoint("keeper.before_release")
        try:
            async with asyncio.timeout_at(release_until):
                await self._release_jobs([child for child in children if child.was_killed_by_us])
                await asyncio.gather(*self._tasks)
        except TimeoutError:
            self._gave_up = True
            log.error("keeper_gave_up", name=self._name, error="the database did not answer in time; the leases will expire")
            return  # the watchdog stays armed: a task that waits for that database must not delay the exit
        watchdog.cancel()

    def _ask_to_stop(self, children: Sequence[ExecutorProcess]) -> None:
        if children:
            log.info("keeper_stopping", name=self._name, executors=len(children), grace_s=self._grace)
        for child in children:
            if child.ready_at is None:
                child.kill()  # it holds nothing yet
            else:
                child.ask_to_stop()

    async def _until_ended(self, supervisors: list[asyncio.Task[None]], at: float) -> None:
        """Wait until every executor has ended, at most until `at` or a second signal."""
        second_signal = asyncio.create_task(self._second_signal.wait())
        ended = asyncio.create_task(asyncio.wait(supervisors))
        timeout = max(0.0, at - asyncio.get_running_loop().time())
        await asyncio.wait([second_signal, ended], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        second_signal.cancel()
        ended.cancel()

    async def _release_jobs(self, killed: list[ExecutorProcess]) -> None:
        """On the keeper's own connection, under the fence: an outcome that a process wrote before it was killed stays."""
        for child in killed:
            given = await self._write_for(child, partial(self._release, child))
            if given is None:
                continue
            self.done += JobCounts(given_back=len(given.released), cut_off=len(given.failed))
            if given.released or given.failed:
                log.warning("jobs_given_back", worker_id=child.id, released=given.released, failed=given.failed)

    async def _release(self, child: ExecutorProcess, conn: psycopg.AsyncConnection[Any]) -> Released:
        async with conn.transaction():
            given = await release_worker(conn, child.id, failing=child.failing, begun=child.begun, actor=self._name)
            await resign(conn, child.id)
        return given

    async def _write_for(self, child: ExecutorProcess, act: Act[T]) -> T | None:
        """Call `act`, which takes the jobs of this executor. None: the database refuses that on every try. The lease ends then,
        so that the sweeps of all workers find the jobs."""
        try:
            return await self._retry_forever(act)
        except psycopg.Error as error:
            log.error("rescue_failed", error=error_line(error), worker_id=child.id)
        if self._config.mode != "serve" or self._stopping.is_set():  # otherwise the sweeps may succeed before it exits
            self._gave_up = True
        with contextlib.suppress(psycopg.Error):
            await self._retry_forever(partial(resign, worker_id=child.id))
        return None

    async def _retry_forever(self, act: Act[T]) -> T:
        """Call `act` until the database could be reached. An error that every try would have is raised."""
        while True:
            try:
                async with asyncio.timeout(self._lease), self._acts as conn:
                    return await act(conn)
            except UNREACHABLE as error:
                if is_permanent(error):
                    raise
                log.warning("worker_database_lost", error=str(error).strip(), name=self._name)
                await asyncio.sleep(RETRY_AFTER)


def _exit_in(seconds: float) -> threading.Timer:
    """A watchdog in a thread: it ends this process even if the event loop hangs."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()
    return timer
