"""A control plane and a worker as real processes, and the client that a notebook has."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import programs
from holdfast.client import Connection, connect
from serving import Served, serving


@contextmanager
def graph_plane(database: str, folder: Path) -> Iterator[Served]:
    """`holdfast serve` with quick loops, and a worker with the jobs of all services. No graph server stays."""
    own = {
        "HOLDFAST_GRAPHS_DIR": str(folder / "graphs"),
        "HOLDFAST_SNAPSHOTS_TO": str(folder / "snapshots"),
        "HOLDFAST_EXPORT_DIRS": str(folder),
        "HOLDFAST_INSTANCE_ORCHESTRATION_JOB_INTERVAL_SECONDS": "1",
        "HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2",
        "HOLDFAST_POLL_SECONDS": "0.2",
        "HOLDFAST_GRACE_SECONDS": "1",
    }
    with serving(database, folder, **own) as served, (folder / "worker.log").open("w") as log:
        worker = programs.start("worker", "run", "--dsn", database, env=os.environ | own, folder=folder, out=log, err=log)
        try:
            yield served
        finally:
            worker.terminate()
            worker.wait()
            worker.kill()


@pytest.fixture
def plane(database: str, tmp_path: Path) -> Iterator[Served]:
    with graph_plane(database, tmp_path) as served:
        yield served


@pytest.fixture
def hf(plane: Served) -> Iterator[Connection]:
    """The client of an admin. Its graphs are deleted at the end."""
    with ExitStack() as stack:
        made = stack.enter_context(connect(plane.url, plane.token, timeout=120))
        stack.callback(remove_all, made)
        yield made


def remove_all(hf: Connection) -> None:
    """Delete every graph, and wait until none is left."""
    for graph in hf.graphs.list(most=None):
        graph.delete()
    deadline = time.monotonic() + 120
    while hf.graphs.list():
        assert time.monotonic() < deadline
        time.sleep(0.1)
