"""A lake in the test's database and folder, an engine on it, and a job whose attempt the engine works for."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import Catalog

import iceberg_tables
from factories import hold
from holdfast.jobs.model import Claim
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Fence
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import engine_of, fence_of, lake

TESTS = Path(iceberg_tables.__file__).parent


@pytest.fixture
def catalogs(database: str, tmp_path: Path) -> Iterator[Catalogs]:
    with lake(database, tmp_path / "lake") as made:
        yield made


@pytest.fixture
def writer(catalogs: Catalogs) -> Catalog:
    """The catalog as other programs see it."""
    return catalogs.open_for_writers("lake")


@pytest.fixture
def engine(catalogs: Catalogs, database: str) -> PyIcebergEngine:
    return engine_of(catalogs, database)


@pytest.fixture
async def claim(conn: psycopg.AsyncConnection[Any]) -> Claim:
    return await hold(conn, "maintenance.run")


@pytest.fixture
def fence(claim: Claim, database: str) -> Fence:
    return fence_of(claim, database)


@pytest.fixture(scope="session")
def forking() -> Iterator[ForkServerContext]:
    """Starts processes in milliseconds: each is a fork of one that has imported PyIceberg and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["iceberg_attempts"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))  # Python 3.11 does not give it our path before it imports
        forkserver.ensure_running()  # now, as it lasts longer than the first test that uses it
    yield context
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.fixture
def start(forking: ForkServerContext) -> Iterator[Callable[..., ForkServerProcess]]:
    """Start a process with a function of `iceberg_attempts`; it is killed after the test."""
    started: list[ForkServerProcess] = []

    def one(function: Callable[..., None], *given: Any) -> ForkServerProcess:
        process = forking.Process(target=function, args=given)
        process.start()
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.join()
