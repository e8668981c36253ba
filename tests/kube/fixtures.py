"""Fixtures of the scenarios: the runtime, a node, and workers that die. A conftest imports them and adds `stage`, `undeletable`
and `outage`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import programs
from holdfast.services.graphs.runtimes.kubernetes.runtime import KubernetesRuntime
from kube.node import Node, ProcessNode
from kube.stage import IMAGE, Stage


@pytest.fixture
def runtime(stage: Stage) -> KubernetesRuntime:
    """The runtime that jobs and loops of this test use."""
    return stage.open(remove_seconds=60.0)


@pytest.fixture
async def node(stage: Stage) -> AsyncIterator[Node]:
    async with Node(stage.admin) as running:
        yield running


@pytest.fixture
def dying_worker(stage: Stage, database: str, tmp_path: Path) -> Callable[[str], AbstractAsyncContextManager[None]]:
    """`async with dying_worker(point)`: a worker program whose executor is really killed at this point; then it goes on."""
    settings = {
        "HOLDFAST_DATABASE_URL": database,
        "HOLDFAST_GRAPH_RUNTIME": "kubernetes",
        "HOLDFAST_KUBERNETES_KUBECONFIG": str(stage.user.kubeconfig),
        "HOLDFAST_KUBERNETES_NAMESPACE": stage.user.namespace,
        "HOLDFAST_KUBERNETES_IMAGE": IMAGE,
        "HOLDFAST_KUBERNETES_ADDRESS": "pod",
        "HOLDFAST_SNAPSHOTS_TO": str(tmp_path / "snapshots"),
    }

    @asynccontextmanager
    async def run(point: str) -> AsyncIterator[None]:
        own = {key: text for key, text in os.environ.items() if not key.startswith("HOLDFAST_")}
        log = tmp_path / f"{point}.log"
        with log.open("w") as out:
            words = ("worker", "run", "--log-format", "json")
            environment = {**own, **settings, "HOLDFAST_CRASH_AT": point}
            process = programs.start(*words, env=environment, folder=tmp_path, out=out, err=out)
        try:
            yield
            assert '"cause": "SIGKILL"' in log.read_text(), f"no executor died at {point}:\n{log.read_text()[-3000:]}"
        finally:
            process.terminate()
            while process.poll() is None:
                await asyncio.sleep(0.01)

    return run


@pytest.fixture
async def process_node(stage: Stage, tmp_path: Path) -> AsyncIterator[ProcessNode]:
    """A node that runs graph servers as processes."""
    async with ProcessNode(stage.admin, tmp_path / "node") as running:
        yield running
