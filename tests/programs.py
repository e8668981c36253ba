"""Start our programs as real processes, without the second that each needs to import everything.

    started = programs.start("worker", "run", "--import", "their_jobs", env=…, folder=…, out=…, err=…)
    started.terminate(); assert started.wait() == 0

    ended = programs.run("job", "list", "--dsn", url, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")

A server process that has imported everything, and has neither threads nor connections, forks a child for each request. The
child behaves like `python -m holdfast`: it has its own arguments, environment, folder, streams and signals, and ends in the
same way. The executors and isolated jobs of a worker are forked too (`proof/processes/spare.py`), if its kinds come from a
module of the test; those of a worker in the test process are, inside `forked_children()`. What else a program starts is not.
`tests/processes/test_worker_process.py`, `test_up.py` and `tests/packaging` start `python -m holdfast`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the server process is started as a file
from proof.processes.spare import PR_SET_CHILD_SUBREAPER, Adopted, fork_an_orphan, use_a_spare

from holdfast.worker import spawn

HEAVY = (
    "holdfast.__main__",
    "holdfast.api.app",
    "holdfast.cli",
    "holdfast.cli.workers",
    "holdfast.cli.run_worker",
    "holdfast.cli.run_remote_worker",
    "holdfast.cli.periodic",
    "holdfast.cli.serve",
    "holdfast.database.launch",
    "holdfast.database.migrate",
    "holdfast.worker.isolated.child",
    "holdfast.worker.keeper.executor",
    "alembic.command",
    "pygments.lexers.python",
    "rich.traceback",
)
PATIENCE = 120.0  # seconds
KEEPER_TIMEOUT = "TEST_KEEPER_TIMEOUT"  # in the environment: seconds that a keeper has at its end, however slow the machine is


class Programs:
    """A client of the server process that forks programs."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._turn = threading.Lock()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self, *words: str, env: Mapping[str, str], folder: Path, out: Any, err: Any, session: bool = False) -> Started:
        """`holdfast <words>` with this environment, in this folder; `out` and `err` are open files.

        `session`: in a new session and process group, as with `start_new_session` of `subprocess.Popen`.
        """
        request = {"words": words, "env": dict(env), "folder": str(folder), "session": session}
        return Started(self, self.ask(request, out.fileno(), err.fileno()))

    def start_module(self, module: str, *descriptors: int) -> subprocess.Popen[bytes]:
        """Does what `holdfast.worker.spawn.start_module` does: the process is a child of this one."""
        request = {"module": module, "env": dict(os.environ), "parent": os.getpid()}
        return Adopted(self.ask(request, *descriptors))

    def ask(self, request: Mapping[str, Any], *descriptors: int) -> Any:
        with self._turn:
            socket.send_fds(self._line, [json.dumps(request).encode() + b"\n"], descriptors)
            with self._line.makefile("rb") as answers:
                return json.loads(answers.readline())

    def close(self) -> None:
        self._line.close()
        self._server.wait(60)


class Started:
    """A running program, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, programs: Programs, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._programs = programs

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._programs.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
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

    def kill_group(self) -> None:
        """SIGKILL for the process group of a program that was started with `session=True`, as when its pod is gone."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


_shared: Programs | None = None


def shared() -> Programs:
    """The server of this test process; started by the first test that needs it, closed by `close_shared`."""
    global _shared
    if _shared is None:
        _shared = Programs()
    return _shared


def shared_pid() -> int | None:
    """The process id of the server, if there is one."""
    return None if _shared is None else _shared.pid


def close_shared() -> None:
    global _shared
    if _shared is not None:
        _shared.close()
        _shared = None


def start(*words: str, **how: Any) -> Started:
    """See `Programs.start`."""
    return shared().start(*words, **how)


@contextmanager
def forked_children() -> Iterator[None]:
    """Fork the executors and isolated jobs that this process starts in the block."""
    start_module = spawn.start_module
    spawn.start_module = shared().start_module
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        spawn.start_module = start_module


def run(*words: str, folder: Path, env: Mapping[str, str] | None = None, timeout: float = PATIENCE) -> Any:
    """Run `holdfast <words>` to its end, as `subprocess.run` does with `capture_output=True, text=True`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = start(*words, env=os.environ if env is None else env, folder=folder, out=out, err=err)
        try:
            code = started.wait(timeout)
        finally:
            started.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["holdfast", *words], code, out.read().decode(), err.read().decode())


# ---------------------------------------------------------------------------------------------------------------------
# In the process that forks, and in the program that it forks
# ---------------------------------------------------------------------------------------------------------------------


def serve(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until the line is closed; returns in each child, with the request and its descriptors."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(line, 65536, 2)
        while text and not text.endswith(b"\n"):
            text += line.recv(65536)
        if not text:
            os._exit(0)
        request = json.loads(text)
        if "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        elif "module" in request:
            os.environ.clear()
            os.environ.update(request["env"])
            answer = fork_an_orphan(request["module"], descriptors, request["parent"], line)
        else:
            ourselves, answer = os.getpid(), os.fork()
            if not answer:
                sys.modules["holdfast.database.launch"].die_with(ourselves, signal.SIGKILL)
                return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        line.sendall(json.dumps(answer).encode() + b"\n")


def become(request: dict[str, Any], out: int, err: int) -> None:
    """Run the program to its end, with threads and `atexit`."""
    if request["session"]:
        os.setsid()
    for descriptor, ours in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(descriptor, ours)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [request["folder"], *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["holdfast", *request["words"]]
    random.seed()  # else all children would have the same random state
    if KEEPER_TIMEOUT in os.environ:
        keeper = import_module("holdfast.worker.keeper.keeper")
        for timeout in ("KILL_TAKES", "RELEASE_TIMEOUT", "RELEASE_TIMEOUT_AFTER_SECOND_SIGNAL"):
            setattr(keeper, timeout, float(os.environ[KEEPER_TIMEOUT]))
    if loads_new_modules(request["words"]):
        use_a_spare(())
    sys.modules["holdfast.__main__"].program()


def loads_new_modules(words: list[str]) -> bool:
    """Whether it is a worker whose kinds are all in modules that are not imported yet.

    A fork does not import a module again, so it would not have the kinds of the services.
    """
    modules = {words[index + 1] for index, word in enumerate(words) if word == "--import"}
    return words[:1] == ["worker"] and bool(modules) and modules.isdisjoint(sys.modules)


def build_routes() -> None:
    """Build the routes of the API, which all apps of a process share: that takes longer than the rest of the start."""
    catalog, pools = import_module("holdfast.catalog"), import_module("holdfast.database.pool")
    app = sys.modules["holdfast.api.app"].make_app(pools.pool(""), nouns=catalog.nouns())
    sys.modules["holdfast.api.lazy_routes"].built(app.routes)


def main(descriptor: int) -> None:
    """It ends when its line is closed. A death signal of the parent would come when the thread ends that started it."""
    line = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    for name in HEAVY:
        import_module(name)
    build_routes()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.freeze()  # otherwise each child copies all this memory to collect its garbage, half a second of CPU time at its end
    request, (out, err) = serve(line)
    line.close()
    become(request, out, err)


if __name__ == "__main__":
    main(int(sys.argv[1]))
