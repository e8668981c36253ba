"""One executor, seen from its keeper: start it, talk to it, look whether it runs, end it. Called by: the keeper."""

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

from holdfast.jobs.model import JobId, WorkerId
from holdfast.telemetry.gathered import Family
from holdfast.worker import spawn
from holdfast.worker.noticeboard import TURNED_AT, Noticeboard
from holdfast.worker.options import LOOKS
from holdfast.worker.orders import FIGURES, STOP, Line, Message, Orders
from holdfast.worker.tally import Tally

LINGER = 1.0  # seconds to end in after the goodbye: a thread that nobody can stop must not hold it up for ever


class Child:
    """An executor process, from its start until it was buried."""

    def __init__(
        self, worker_id: WorkerId, orders: Orders, on_ready: Callable[[Child], None], on_figures: Callable[[Child], None]
    ) -> None:
        """Start it, from the main thread: the kernel ends it with the thread that started it."""
        self.id = worker_id
        self.board = Noticeboard.new(orders.concurrency + LOOKS)
        self.begun: list[JobId] = []  # when it died
        self.kinds: list[str] = []
        self.failing: list[str] = []
        self.tally: Tally | None = None  # it said goodbye
        self.refusal: str | None = None  # it said that it will never start
        self.trouble: str | None = None  # it said that it could not start this time
        self.ready_at: float | None = None
        self.was_ended_by_us = False
        self.died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.figures: list[Family] = []  # what it has counted, when it was asked last
        self.answered = asyncio.Event()
        self.answered.set()
        self._on_ready, self._on_figures = on_ready, on_figures
        ours, theirs = socket.socketpair()
        self._line = Line(ours)
        self._process = spawn.start_module("holdfast.worker.executor", theirs.fileno(), self.board.descriptor)
        theirs.close()
        self._line.say(replace(orders, worker_id=worker_id).to_message())
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._hear)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self.died.done()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody stopped it with SIGSTOP, or looks at it with a debugger. Only Linux tells."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    @property
    def runs(self) -> list[JobId]:
        """The jobs that have begun in it and not ended, while it lives."""
        return [JobId(job_id) for job_id in self.board.begun if job_id]

    @property
    def blocked_for(self) -> float:
        """How many seconds ago its event loop turned last."""
        turned_at = self.board.times[TURNED_AT]
        return time.monotonic() - turned_at if turned_at else 0.0

    def tell_to_stop(self) -> None:
        """Claim no more, and end when what runs has ended."""
        self._line.say(STOP)

    def ask_figures(self) -> bool:
        """Ask what it has counted. Not twice before it answers: the line of one that does not run must not fill up."""
        if self.ready_at is None or not self.is_alive or not self.answered.is_set():
            return False
        self.answered.clear()
        self._line.say(FIGURES)
        return True

    def kill(self) -> None:
        """End it, and what its handlers started."""
        if self.is_alive:
            self.was_ended_by_us = True
            self._signal_all()

    def look(self) -> None:
        """If it is dead: note how, end what its handlers left behind, and let the kernel forget it."""
        if self.is_alive and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._signal_all()  # before it is reaped: until then nobody else can get its number
            returncode = self._process.wait()
            self._hear()  # its last words
            self._line.close()
            self.begun = self.runs
            self.board.close()
            self.died.set_result(returncode)

    def _signal_all(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # some systems refuse a group that is dead already
            os.killpg(self.pid, signal.SIGKILL)

    def _hear(self) -> None:
        for message in self._line.hear():
            self._take_in(message)
        if self._line.is_over:
            asyncio.get_running_loop().remove_reader(self._line.end)

    def _take_in(self, message: Message) -> None:
        match message:
            case {"say": "ready", "kinds": kinds, "failing": failing}:
                self.kinds, self.failing, self.ready_at = kinds, failing, time.monotonic()
                self._on_ready(self)
            case {"say": "figures", "families": families}:
                self.figures = families
                self.answered.set()
                self._on_figures(self)
            case {"say": "ended", **tally}:
                self.tally = Tally(**tally)
                asyncio.get_running_loop().call_later(LINGER, self.kill)
            case {"say": "cannot_start", "error": error}:
                self.refusal = error
            case {"say": "no_database", "error": error}:
                self.trouble = error
