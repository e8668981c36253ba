"""One database for all of these tests, wiped after each, as in tests/postgres/jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

from factories import TABLES, new_database
from holdfast.database.pool import Link, pool
from holdfast.schedule.tick import Place

WIPE = "; ".join(f"DELETE FROM holdfast.{table}" for table in reversed(TABLES))
WITNESS = "CREATE TABLE public.witness (id serial PRIMARY KEY, loop text, key text, due_at timestamptz, term bigint, who text)"


@pytest.fixture(scope="session")
def loops_database(server: str, template: str) -> Iterator[str]:
    with new_database(server, f"TEMPLATE {template}") as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(WITNESS)
        yield url


@pytest.fixture
def database(loops_database: str) -> Iterator[str]:
    """The address of a database with the current schema, a table `witness` for what loops do, and nothing in them."""
    yield loops_database
    with psycopg.connect(loops_database, autocommit=True) as conn:
        conn.execute("SET lock_timeout = '5s'")
        conn.execute(f"{WIPE}; DELETE FROM public.witness")


@pytest.fixture
async def places(database: str) -> AsyncIterator[Callable[[str], Any]]:
    """Makes places where ticks run: as many processes as a test wants to play, in one."""
    made: list[Place] = []

    async def make(holder: str) -> Place:
        place = Place(database, holder, Link(database), pool(database))
        await place.pool.open()
        made.append(place)
        return place

    yield make
    for place in made:
        await place.rows.close()
        await place.pool.close()


@pytest.fixture
async def place(places: Callable[[str], Any]) -> Place:
    """One place."""
    return await places("here")
