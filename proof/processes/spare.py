"""Fork executors and isolated jobs in ten milliseconds each, from a process that has imported everything.

Most of the cost of a schedule with a keeper is an interpreter that imports modules for a second. So a worker of the
schedules keeps a *spare*: a fork of itself from before it had any thread or connection. What the worker would start
with `exec` is forked from the spare. The direct parent exits at once, and the worker, as a child subreaper, adopts the
orphan. From then on it is a normal child: the worker waits for it, notices its death, and ends it when it ends itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from holdfast.worker import kinds, spawn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
EXECUTOR = "holdfast.worker.keeper.executor"


def use_a_spare(handlers: Sequence[str]) -> None:
    """From now on this process, which has no threads yet, starts its modules warm: all is imported but the handlers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker = os.getpid()
    if os.fork() == 0:
        ours.close()
        _forget(handlers)
        _be_the_spare(theirs, worker)
    theirs.close()
    one_at_a_time = threading.Lock()

    def start_module(module: str, *descriptors: int) -> subprocess.Popen[bytes]:
        with one_at_a_time:
            socket.send_fds(ours, [module.encode()], list(descriptors))
            answer = ours.recv(64)
        if not answer:
            raise OSError("the spare process is gone")
        return Adopted(int(answer))

    spawn.start_module = start_module


class Adopted(subprocess.Popen[bytes]):
    """A child that somebody else forked: all that waits for it is as ever."""

    def __init__(self, pid: int) -> None:
        self.args, self.pid, self.returncode = "warm", pid, None
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock, self._child_created = threading.Lock(), True


def _forget(handlers: Sequence[str]) -> None:
    """Whoever is started imports them anew, as any process does."""
    for module in handlers:
        sys.modules.pop(module, None)
    kinds._kinds.clear()
    kinds._cleaners.clear()


def _be_the_spare(orders: socket.socket, worker: int) -> None:
    """Fork on request, until the worker is gone."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        while os.getppid() == worker:
            module, descriptors, _, _ = socket.recv_fds(orders, 100, 8)
            if not module:
                break
            orders.send(str(fork_an_orphan(module.decode(), descriptors, worker, orders)).encode())
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(0)


def fork_an_orphan(module: str, descriptors: list[int], worker: int, orders: socket.socket) -> int:
    """Its process id, once it is the worker's child and leads a session of its own."""
    heard, said = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() == 0:
            orders.close()
            os.close(heard)
            _become(module, descriptors, worker, between, said)
        os._exit(0)
    os.close(said)
    os.waitpid(between, 0)
    with os.fdopen(heard) as answer:
        return int(json.loads(answer.read()))


def _become(module: str, descriptors: list[int], worker: int, between: int, said: int) -> None:
    code: Any = 70
    try:
        while os.getppid() == between:
            time.sleep(0.0005)
        os.setsid()
        os.write(said, str(os.getpid()).encode())
        os.close(said)
        random.seed()  # else all forks would have the same random state
        if module == EXECUTOR:
            use_a_spare(())  # for its isolated jobs
        code = importlib.import_module(module).main(worker, *descriptors)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
