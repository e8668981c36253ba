"""Our programs as real processes, without the second that each needs to import everything.

    started = programs.start("worker", "run", "--import", "their_jobs", env=…, folder=…, out=…, err=…)
    started.terminate(); assert started.wait() == 0

A process that has imported everything, and has neither threads nor connections, forks on request; from there on the child is
what `python -m holdfast` is: its own arguments, environment, folder, streams and signals, and the same end. Whatever a program
starts itself is started as ever. `tests/processes/test_worker_process.py` and `test_up.py` start programs the long way.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

HEAVY = (
    "holdfast.__main__",
    "holdfast.cli.workers",
    "holdfast.cli.periodic",
    "holdfast.cli.serve",
    "holdfast.database.launch",
)


class Programs:
    """Starts programs."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._turn = threading.Lock()
        command = [sys.executable, __file__, str(os.getpid()), str(theirs.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, *words: str, env: Mapping[str, str], folder: Path, out: Any, err: Any) -> Started:
        """`holdfast <words>` with this environment, in this folder; `out` and `err` are open files."""
        order = {"words": words, "env": dict(env), "folder": str(folder)}
        return Started(self, self.ask(order, out.fileno(), err.fileno()))

    def ask(self, order: Mapping[str, Any], *descriptors: int) -> Any:
        with self._turn:
            socket.send_fds(self._line, [json.dumps(order).encode() + b"\n"], descriptors)
            with self._line.makefile("rb") as answers:
                return json.loads(answers.readline())

    def close(self) -> None:
        self._line.close()
        self._server.wait(60)


class Started:
    """A program that runs; as a `subprocess.Popen`, as far as tests need it."""

    def __init__(self, programs: Programs, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._programs = programs

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._programs.ask({"look": self.pid})
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("holdfast", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# ---------------------------------------------------------------------------------------------------------------------
# In the process that forks, and in the program that it forks
# ---------------------------------------------------------------------------------------------------------------------


def serve(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork on request until nobody asks any more; comes back in each child, with what it is to be."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(line, 65536, 2)
        while text and not text.endswith(b"\n"):
            text += line.recv(65536)
        if not text:
            os._exit(0)
        order = json.loads(text)
        if "look" in order:
            ended, status = os.waitpid(order["look"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            ourselves, answer = os.getpid(), os.fork()
            if not answer:
                sys.modules["holdfast.database.launch"].die_with(ourselves, signal.SIGKILL)
                return order, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        line.sendall(json.dumps(answer).encode() + b"\n")


def become(order: dict[str, Any], out: int, err: int) -> None:
    """The program, to its very end: threads, `atexit` and all."""
    for descriptor, ours in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(descriptor, ours)
        os.close(descriptor)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[:0] = [order["folder"], *filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["holdfast", *order["words"]]
    random.seed()  # else all children would draw the same
    sys.modules["holdfast.__main__"].program()


def main(owner: int, descriptor: int) -> None:
    line = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    for name in HEAVY:
        import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    sys.modules["holdfast.database.launch"].die_with(owner, signal.SIGKILL)
    order, (out, err) = serve(line)
    line.close()
    become(order, out, err)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
