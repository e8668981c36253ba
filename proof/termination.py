"""SIGTERM ends a run of the proof with everything that it started. Called by: the commands of this folder.

Python's default ends only the process itself: its workers would play on, and temporary servers would keep their folders.
Unwinding the stack is no alternative, because threads that try out mutants wait for their own children.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from proof.processes.fork_server import descendants

EXIT_CODE = 128 + signal.SIGTERM
SERVER_SECONDS = 10.0  # for servers to end after the process that started them


def end_children_on_sigterm() -> None:
    """On SIGTERM kill all descendants, stop the servers, remove temporary folders, and exit with 143."""
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork that inherited this handler
            os._exit(EXIT_CODE)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_children()
        atexit._run_exitfuncs()  # stops the embedded server and removes temporary folders
        os._exit(EXIT_CODE)

    signal.signal(signal.SIGTERM, handle)


def _end_children() -> None:
    """A Postgres server ends by itself with the process that started it; the one of this process is left to `atexit`."""
    children = descendants(os.getpid())
    servers = [pid for pid in children if _name(pid) == "postgres"]
    own = {pid for pid in servers if _parent(pid) == os.getpid()}
    own |= {pid for pid in servers if _parent(pid) in own}
    for pid in set(children) - set(servers):
        _kill(pid)
    deadline = time.monotonic() + SERVER_SECONDS
    while left := [pid for pid in servers if pid not in own and _name(pid) == "postgres"]:
        if time.monotonic() > deadline:
            for pid in left:
                _kill(pid)
            return
        time.sleep(0.01)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _name(pid: int) -> str | None:
    with suppress(OSError, ProcessLookupError):
        text = (Path("/proc") / str(pid) / "stat").read_text()
        if text.rpartition(")")[2].split()[0] not in "ZX":
            return text.partition("(")[2].rpartition(")")[0]
    return None


def _parent(pid: int) -> int | None:
    with suppress(OSError, ProcessLookupError):
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return None
