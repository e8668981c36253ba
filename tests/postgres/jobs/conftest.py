"""One database for all of these tests, wiped after each: a clone for each would take longer than most of them.

A test that looks at plans, statistics or migrations takes `fresh_database` or `empty_database`, which nobody has used.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from factories import TABLES, new_database

WIPE = "; ".join(f"DELETE FROM holdfast.{table}" for table in reversed(TABLES))


@pytest.fixture(scope="session")
def shared_database(server: str, template: str) -> Iterator[str]:
    with new_database(server, f"TEMPLATE {template}") as url:
        yield url


@pytest.fixture(scope="session")
def sweeper(shared_database: str) -> Iterator[psycopg.Connection]:
    """Wipes the shared database; a test that left a row locked fails instead of hanging the rest."""
    with psycopg.connect(shared_database, autocommit=True) as conn:
        conn.execute("SET lock_timeout = '5s'; SET synchronous_commit = off")
        yield conn


@pytest.fixture
def database(shared_database: str, sweeper: psycopg.Connection) -> Iterator[str]:
    """The address of a database with the current schema and nothing in it."""
    yield shared_database
    sweeper.execute(WIPE)


@pytest.fixture
def fresh_database(server: str, template: str) -> Iterator[str]:
    """The address of a database with the current schema that no other test has used."""
    with new_database(server, f"TEMPLATE {template}") as url:
        yield url


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """The address of a database without any schema of ours."""
    with new_database(server) as url:
        yield url
