"""Starts owners of embedded servers as processes of their own, and watches what is at work in a data folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.database import embedded, launch
from holdfast.database.cluster import Cluster
from holdfast.database.embedded import THROWAWAY, EmbeddedPostgres

SOURCE = str(Path(embedded.__file__).parents[2])
PACKAGES = str(Path(psycopg.__file__).parents[1])
CHILD_ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}:{PACKAGES}"}

OWNER = """
import os, sys
from pathlib import Path
from holdfast.database.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), on_message=lambda text: None)
server.start()
print(server.url, flush=True)
line = sys.stdin.readline()
if line == "fork\\n":
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
    print(child, flush=True)
    sys.stdin.read()
if line != "exit\\n":
    server.stop()
"""

WRITER = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    for number in range(int(sys.argv[2]), 10**9):
        connection.execute("INSERT INTO written VALUES (%s)", [number])
        print(number, flush=True)
"""


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def python(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=CHILD_ENVIRONMENT) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def cluster_of(root: Path) -> Cluster:
    return Cluster(root.resolve(), launch.server_account())


def processes(root: Path) -> set[int]:
    return cluster_of(root).processes()


def postmaster(root: Path) -> int:
    """The number of the server's process, 0 if there is none."""
    recorded = cluster_of(root).recorded()
    return recorded.process if recorded else 0


def kill(*targets: int, number: signal.Signals = signal.SIGKILL) -> None:
    for process in targets:
        assert process > 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def value(url: str, query: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[call-overload]
        return str(row[0])


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[call-overload]


def used_folder(factory: pytest.TempPathFactory) -> Path:
    """A data folder in a closed home that was used before. To make one takes a second, so a file's tests share it."""
    root = factory.mktemp("home") / ".holdfast"
    with EmbeddedPostgres(root, settings=THROWAWAY):
        pass
    root.parent.chmod(0o700)
    return root


@contextlib.contextmanager
def nothing_left_behind(root: Path) -> Iterator[Path]:
    yield root
    if left := processes(root):
        cluster_of(root).end_processes()
    assert not left, "the test left a server behind"


@contextlib.contextmanager
def folder_for_everybody() -> Iterator[Path]:
    """A folder that every user may enter; those of pytest are closed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
