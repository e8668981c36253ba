"""A real Postgres for every test: one server per test process, and a database with the current schema and nothing in it.

`database` is emptied and used again, which takes a few milliseconds; `fresh_database` is a clone that nobody has used, for
tests that look at plans or statistics; `empty_database` has no schema of ours. Only the first is cheap.

`HOLDFAST_TEST_DATABASE_URL` names a server to use instead of the embedded one; its user must be allowed to create databases.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpcore2
import hypothesis
import psycopg
import pytest
import structlog
from proof.processes.postgres import CHEAP_PASSWORD
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

import templates
from databases import Reused, cloned, new_database
from factories import waits
from holdfast.database import migrate
from holdfast.database.cluster import ROLE
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.telemetry import log
from holdfast.worker import kinds

# In the background a shell has us ignore Ctrl-C, and all that we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["leaks"]
# No test depends on the speed of the machine: an example may take as long as it takes. Every run tries the same examples.
hypothesis.settings.register_profile(
    "holdfast", deadline=None, derandomize=True, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("holdfast")
# Reading the system's certificates takes longer than most tests; each HTTP client would do it, and the tests speak plain HTTP.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)
templates.compile_once()
# Objects that are made while tests are collected stay: nothing is gained by looking for garbage among them.
gc.disable()
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "100"}


# Where tests wait for processes, and files with a test that takes more than ten seconds, the longest first.
LONGEST = (
    *("test_up.py", "test_console_in_chromium.py", "test_graph_tutorial.py", "test_fuzz.py", "test_schedules.py"),
    *("test_process_schedules.py", "test_tutorial.py", "test_dashboards.py", "test_export_memory.py"),
)
LONG = (*LONGEST, "processes", "faults", "concurrency")


# Files with tests for `make test-more` only. Importing them takes seconds, in each process of pytest-xdist.
ONLY_MORE = ("test_fuzz.py", "test_console_in_chromium.py", "test_console_journeys.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of `make test-more`, unless they are asked for."""
    is_named = any(collection_path.name in argument for argument in config.invocation_params.args)
    return True if collection_path.name in ONLY_MORE and not is_named and not _more_is_asked_for(config) else None


def _more_is_asked_for(config: pytest.Config) -> bool:
    return "HOLDFAST_TEST_EVERYTHING" in os.environ or bool(config.option.markexpr)


# Folders of tests whose order of events is up to several processes or connections. `make test-repeat` repeats them.
RACING = ("processes", "faults", "concurrency")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that start processes or let one connection wait for another."""
    steps = getattr(getattr(item, "module", None), "waits", None) is waits
    if steps or item.get_closest_marker("processes") or set(RACING) & set(_parts(item.path)):
        item.add_marker("races")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of `make test-more`, unless they are asked for, and put those that take long first: at the end, when
    one process has nothing left, the others have little to go on with.

    Each process of pytest-xdist starts with an equal share of the list. Half of what takes long goes to the first, the other
    half to one in the middle, while the others run tests that need the CPU.
    """
    if not _more_is_asked_for(config):
        more = [item for item in items if item.get_closest_marker("more")]
        config.hook.pytest_deselected(items=more)
        items[:] = [item for item in items if item not in more]
    of_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        assert item.path.name not in ONLY_MORE or item.get_closest_marker("more"), f"{item.nodeid} would run in no command"
        of_file.setdefault(item.path, []).append(item)
    files = sorted(of_file, key=_rank)
    long = [file for file in files if _rank(file) < len(LONG)]
    first, second, rest = (
        [item for file in some for item in of_file[file]] for some in (long[::2], long[1::2], files[len(long) :])
    )
    middle = max(0, len(items) // 2 - len(first))
    items[:] = [*first, *rest[:middle], *second, *rest[middle:]]


def _rank(file: Path) -> int:
    """Where a file stands in LONG; behind all of them if it is not there."""
    return min((LONG.index(part) for part in _parts(file) if part in LONG), default=len(LONG))


def _parts(file: Path) -> tuple[str, ...]:
    """The folders below `tests`, and the name."""
    here = Path(__file__).parent
    return file.relative_to(here).parts if file.is_relative_to(here) else ()


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: leave them out of every later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # by default it looks for garbage after every 700 objects, which most tests exceed
    gc.enable()


@pytest.fixture(autouse=True)
def our_logs_are_heard() -> Iterator[None]:
    """A command that a test runs in this process configures our loggers: its handler writes to a stream that is closed after
    the test, its level may silence the next test, and the next test would see its format."""
    loggers = [logging.getLogger(), logging.getLogger("holdfast")]
    loggers[1].setLevel(logging.NOTSET)
    before = [(logger, list(logger.handlers), logger.propagate) for logger in loggers]
    is_configured, configuration = structlog.is_configured(), log._configuration
    yield
    log._configuration = configuration
    if not is_configured:
        structlog.reset_defaults()
    for logger, handlers, propagate in before:
        logger.handlers[:] = [handler for handler in logger.handlers if handler in handlers]
        logger.propagate = propagate


@pytest.fixture(autouse=True)
def kinds_of_the_test_are_forgotten() -> Iterator[None]:
    """Two tests may use one name: which of them share a process is up to pytest-xdist."""
    before = set(kinds._kinds)
    yield
    for name in set(kinds._kinds) - before:
        if "<locals>" in kinds._kinds[name].function.__qualname__:  # those of modules stay, as the modules do
            del kinds._kinds[name]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server that may be used at will."""
    given = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with (
        TemporaryDirectory(prefix="holdfast-test-", dir=folder_in_memory()) as folder,
        EmbeddedPostgres(Path(folder), port=0, settings=QUICK, on_message=lambda _: None) as postgres,
    ):
        with psycopg.connect(postgres.url, autocommit=True) as conn:
            conn.execute(CHEAP_PASSWORD.format(ROLE, conninfo_to_dict(postgres.url)["password"]))
        yield postgres.url


def folder_in_memory() -> str | None:
    """Where files cost the least, if there is room for four servers: each clone of a database is hundreds of files."""
    memory = "/dev/shm"
    return memory if Path(memory).is_dir() and shutil.disk_usage(memory).free > 2 << 30 else None


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a database with the current schema and nothing in it."""
    with new_database(server) as url:
        migrate.migrate(url)
        yield conninfo_to_dict(url)["dbname"]


@pytest.fixture(scope="session")
def reused(server: str, template: str) -> Iterator[Reused]:
    """The database that the tests of this process use one after the other."""
    reused = Reused(server, template)
    yield reused
    reused.close()


@pytest.fixture
def database(reused: Reused) -> Iterator[str]:
    """The address of a database with the current schema and nothing in it."""
    yield reused.lend()
    reused.take_back()


@pytest.fixture
def fresh_database(server: str, template: str) -> Iterator[str]:
    """The address of a database with the current schema that no other test has used."""
    with new_database(server, cloned(template)) as url:
        yield url


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """The address of a database without any schema of ours."""
    with new_database(server) as url:
        yield url


@pytest.fixture
async def connect(database: str) -> AsyncIterator[Callable[[], Any]]:
    """Opens connections that are closed after the test; one that was left inside a transaction fails it."""
    async with AsyncExitStack() as stack:
        opened: list[psycopg.AsyncConnection[Any]] = []

        async def open_one() -> psycopg.AsyncConnection[Any]:
            conn = await psycopg.AsyncConnection.connect(database, autocommit=True)
            opened.append(conn)
            stack.push_async_callback(conn.close)
            return conn

        yield open_one
        assert all(c.closed or c.info.transaction_status == TransactionStatus.IDLE for c in opened)


@pytest.fixture
async def conn(connect: Callable[[], Any]) -> psycopg.AsyncConnection[Any]:
    """One connection in autocommit."""
    return await connect()
