"""A real Postgres for every test: one server per test process, one database per test, cloned from a migrated template.

`HOLDFAST_TEST_DATABASE_URL` names a server to use instead of the embedded one; its user must be allowed to create databases.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from holdfast.database import migrate
from holdfast.database.embedded import EmbeddedPostgres

QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "100"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that may be used at will."""
    given = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    root: Path = tmp_path_factory.mktemp("postgres")
    with EmbeddedPostgres(root, port=0, settings=QUICK, on_message=lambda _: None) as postgres:
        yield postgres.url


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a database with the current schema and nothing in it."""
    name = f"holdfast_template_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    migrate.migrate(_with_database(server, name))
    yield name
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    """The address of this test's own database."""
    name = f"holdfast_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    yield _with_database(server, name)
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


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


def _with_database(url: str, name: str) -> str:
    """The same server, another database, as an address that SQLAlchemy understands too."""
    info = psycopg.conninfo.conninfo_to_dict(url)
    user, password = info.get("user", ""), info.get("password")
    secret = f":{password}" if password else ""
    assert make_conninfo(url)
    return f"postgresql://{user}{secret}@{info.get('host', '127.0.0.1')}:{info.get('port', 5432)}/{name}"
