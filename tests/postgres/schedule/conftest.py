"""Places where loops run, and a table for what they do there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from databases import Reused
from holdfast.database.pool import Link, pool
from holdfast.schedule.tick import Place

WITNESS = "CREATE TABLE public.witness (id serial PRIMARY KEY, loop text, key text, due_at timestamptz, term bigint, who text)"


@pytest.fixture(scope="session")
def reused(server: str, template: str) -> Iterator[Reused]:
    """As elsewhere, with a table `witness` for what loops do."""
    reused = Reused(server, template, also=WITNESS)
    yield reused
    reused.close()


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
