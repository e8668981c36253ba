"""A server that has imported everything and forks worker processes on request, in ten milliseconds each.

    with ForkServer() as forks:
        worker = forks.start(url, folder, crash_at="claim.in_tx:2")
        worker.kill(); worker.wait()

The server has no threads and no connections, so its forks are clean. Its children end with it, and it ends with its
user.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import sqlalchemy.exc
from psycopg_pool import PoolTimeout

from holdfast.errors import DatabaseProblem

PR_SET_PDEATHSIG = 1
STARTABLE = ("holdfast.worker.keeper.executor", "holdfast.worker.isolated.child")
HANDLERS = "proof.processes.handlers"
FAILED, NO_DATABASE = 70, 71  # how a worker ends that raised what nobody expected; or that found no database when it began


@dataclass(frozen=True, slots=True)
class Order:
    """How a worker is to be run."""

    url: str
    folder: str  # of the witness
    mode: str = "worker"  # or "in process", "keeper"
    crash_at: str | None = None
    beat: float = 0.1
    lease: float = 1.0
    grace: float = 1.0
    concurrency: int = 4
    name: str = "worker"
    kinds: Sequence[str] = ()  # none: all
    version: int = 1  # of all its kinds
    modules: Sequence[str] = (HANDLERS,)
    warm: bool = False  # what it starts itself is forked too, and not an interpreter that has to import everything
    environment: dict[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------------
# In the server, and in the worker that it forks
# ---------------------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork on request until the standard input ends."""
    for module in (HANDLERS, "proof.processes.modes", *STARTABLE):
        importlib.import_module(module)
    gc.freeze()  # what was imported is shared by all forks, and must not be copied because somebody collects garbage
    _die_with_parent(signal.SIGKILL)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            answer = {"pid": _fork(Order(**order))}
        print(json.dumps(answer), flush=True)


def _fork(order: Order) -> int:
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        _die_with_parent(signal.SIGKILL)
        os.setpgid(0, 0)
        log = os.open(Path(order.folder) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        os.environ.update(order.environment)
        code = sys.modules["proof.processes.modes"].run(order)
    except BaseException as error:  # whatever it is, it must not fall back into the server's loop
        os.write(2, f"worker failed: {error!r}\n".encode())
        if isinstance(error, (psycopg.OperationalError, sqlalchemy.exc.OperationalError, PoolTimeout, DatabaseProblem)):
            code = NO_DATABASE
    finally:
        os._exit(code)


def _die_with_parent(number: int) -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


# ---------------------------------------------------------------------------------------------------------------------
# Its user
# ---------------------------------------------------------------------------------------------------------------------


class Forked:
    """A worker process that somebody else is the parent of."""

    def __init__(self, server: ForkServer, pid: int, order: Order) -> None:
        self.pid, self.order = pid, order
        self._server = server
        self._handle = os.pidfd_open(pid)
        self.code: int | None = None
        self.told = 0  # to end, and how often

    @property
    def is_alive(self) -> bool:
        if self.code is not None:
            return False
        ended, _, _ = select.select([self._handle], [], [], 0)
        return not ended

    def send(self, number: int) -> None:
        self.told += number == signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.Signals(number))

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process and all that it started, and wait until none of them runs any more."""

        def stop_all() -> bool:
            self._send_to_all(signal.SIGSTOP)  # each time: a process that was just being forked is not in the first list
            return self.is_stopped

        until(stop_all)

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP has taken effect on the process and on all that it started."""
        return all(_state(pid) in STOPPED_OR_ENDED for pid in [self.pid, *descendants(self.pid)])

    def go_on(self) -> None:
        self._send_to_all(signal.SIGCONT)

    def kill_all(self) -> None:
        """The process and all that it started, as when a pod is gone."""
        self._send_to_all(signal.SIGKILL)

    def _send_to_all(self, number: signal.Signals) -> None:
        for pid in [self.pid, *descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds: float = 60) -> int:
        """Its exit code; minus the signal that killed it."""
        if self.code is None:
            ended, _, _ = select.select([self._handle], [], [], seconds)
            if not ended:
                raise TimeoutError(f"process {self.pid} did not end in {seconds} s")
            self.code = self._server.tell(wait=self.pid)["code"]
            os.close(self._handle)
        return self.code

    def bury(self) -> None:
        """Whatever state it is in: gone afterwards."""
        if self.code is None:
            self.kill_all()
            self.wait()


class ForkServer:
    """The server process, and the workers it has forked for us."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proof.processes.fork_server"],
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._is_ready = False  # it imports while we do something else
        self._started: list[Forked] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.bury_all()
        self._process.kill()
        self._process.communicate()

    def start(self, url: str, folder: Path, **options: Any) -> Forked:
        """A worker, running in a moment."""
        order = Order(url, str(folder), **options)
        started = Forked(self, self.tell(**asdict(order))["pid"], order)
        self._started.append(started)
        return started

    def bury_all(self) -> None:
        """End every worker that is left."""
        for worker in self._started:
            worker.bury()
        self._started.clear()

    def tell(self, **order: Any) -> dict[str, Any]:
        if not self._is_ready:
            self._is_ready = bool(self._read())
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the fork server died; see its error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


STOPPED_OR_ENDED = (*"TtZX", None)


def _state(pid: int) -> str | None:
    """The state letter of a process as in `ps`; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def descendants(pid: int) -> list[int]:
    """All that a process has started, and all that they have."""
    by_parent = _by_parent()
    found, left = [], [pid]
    while left:
        mine = by_parent.get(left.pop(), [])
        found += mine
        left += mine
    return found


def children(pid: int) -> list[int]:
    """All that a process has started, and the orphans that it has got."""
    return _by_parent().get(pid, [])


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found.setdefault(parent, []).append(int(entry.name))
    return found


def until(reached: Any, seconds: float = 60, every: float = 0.005) -> Any:
    """Wait for a condition, and return what it came to."""
    deadline = time.monotonic() + seconds
    while not (found := reached()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not met within {seconds} s")
        time.sleep(every)
    return found


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


if __name__ == "__main__":
    serve()
