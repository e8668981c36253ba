"""One executor process, as its keeper sees it: start it, exchange messages, check whether it runs, kill it.

Called by: the keeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.jobs.model import WorkerId
from holdfast.telemetry.gathered import Family
from holdfast.worker import spawn
from holdfast.worker.job_counts import JobCounts
from holdfast.worker.keeper.messages import FIGURES, STOP, ExecutorConfig, Message, MessageChannel
from holdfast.worker.keeper.shared_page import LOOP_RAN_AT, SharedPage
from holdfast.worker.options import POLL_LANES

EXIT_TIMEOUT = 1.0  # seconds from `ended` to the exit: a thread that cannot be stopped must not delay it forever


class ExecutorProcess:
    """An executor process, from its start until it is reaped."""

    def __init__(
        self,
        worker_id: WorkerId,
        config: ExecutorConfig,
        on_ready: Callable[[ExecutorProcess], None],
        on_figures: Callable[[ExecutorProcess], None],
    ) -> None:
        """Start it. From the main thread: the kernel kills it when the thread that started it ends."""
        self.id = worker_id
        self.page = SharedPage.new(config.options.concurrency + POLL_LANES)
        self.begun: list[int] = []  # and not ended, when the process ended
        self.kinds: list[str] = []
        self.failing: list[str] = []
        self.counts: JobCounts | None = None  # set: it ended by itself, in order
        self.start_error: str | None = None  # set: it will never start
        self.database_error: str | None = None  # set: it could not reach the database at its start
        self.ready_at: float | None = None
        self.was_killed_by_us = False
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.figures: list[Family] = []  # its metrics, when it was last asked
        self.answered = asyncio.Event()
        self.answered.set()
        self._on_ready, self._on_figures = on_ready, on_figures
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel(ours)
        self._process = spawn.start_module("holdfast.worker.keeper.executor", theirs.fileno(), self.page.descriptor)
        theirs.close()
        self._channel.send(replace(config, worker_id=worker_id).to_message())
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._receive)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self.exited.done()

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP or a debugger. Known on Linux only."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    @property
    def running(self) -> list[int]:
        """The fence tokens of the attempts that have begun and not ended, while the process lives."""
        return [token for token in self.page.begun if token]

    @property
    def blocked_for(self) -> float:
        """Seconds since its event loop last ran."""
        ran_at = self.page.times[LOOP_RAN_AT]
        return time.monotonic() - ran_at if ran_at else 0.0

    def ask_to_stop(self) -> None:
        """Ask it to claim no more jobs, and to end after those that run."""
        self._channel.send(STOP)

    def ask_figures(self) -> bool:
        """Ask for its metrics. Not again before it answers: the channel to a process that does not run must not fill up."""
        if self.ready_at is None or not self.is_alive or not self.answered.is_set():
            return False
        self.answered.clear()
        self._channel.send(FIGURES)
        return True

    def kill(self) -> None:
        """Kill it and the processes that its handlers started."""
        if self.is_alive:
            self.was_killed_by_us = True
            self._kill_group()

    def reap_if_exited(self) -> None:
        """If it has ended: kill the processes that its handlers left behind, reap it, and note its return code."""
        if self.is_alive and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._kill_group()  # before it is reaped: until then no other process can get its id
            returncode = self._process.wait()
            self._receive()  # its last messages
            self._channel.close()
            self.begun = self.running
            self.page.close()
            self.exited.set_result(returncode)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # some systems refuse a group that has ended
            os.killpg(self.pid, signal.SIGKILL)

    def _receive(self) -> None:
        for message in self._channel.receive():
            self._handle(message)
        if self._channel.is_closed:
            asyncio.get_running_loop().remove_reader(self._channel.end)

    def _handle(self, message: Message) -> None:
        match message:
            case {"type": "ready", "kinds": kinds, "failing": failing}:
                self.kinds, self.failing, self.ready_at = kinds, failing, time.monotonic()
                self._on_ready(self)
            case {"type": "figures", "families": families}:
                self.figures = families
                self.answered.set()
                self._on_figures(self)
            case {"type": "ended", **counts}:
                self.counts = JobCounts(**counts)
                asyncio.get_running_loop().call_later(EXIT_TIMEOUT, self.kill)
            case {"type": "cannot_start", "error": error}:
                self.start_error = error
            case {"type": "no_database", "error": error}:
                self.database_error = error
