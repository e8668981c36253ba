"""The connection that claims also listens, and reconnects after a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from factories import value
from holdfast.database.listen import ListeningLink

pytestmark = pytest.mark.usefixtures("conn")
BACKENDS = "SELECT array_agg(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"


@pytest.fixture
async def heard(database: str) -> Any:
    """A link that listens, and what it has heard so far."""
    link, hints = ListeningLink(database), asyncio.Queue[str]()
    listening = asyncio.create_task(link.listen(hints.put_nowait, again_after=0.01))
    assert await hints.get() == "", "it looks once when it begins"
    yield link, hints
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await link.close()


async def test_listener_receives_while_idle(heard: Any, conn: Any) -> None:
    _, hints = heard
    for hint in ("one", "two"):
        await conn.execute("SELECT pg_notify('holdfast', %s)", [hint])
        assert await asyncio.wait_for(hints.get(), 60) == hint


async def test_listener_receives_during_and_after_a_statement(heard: Any, conn: Any) -> None:
    link, hints = heard
    async with link as used:
        await conn.execute("SELECT pg_notify('holdfast', 'meanwhile')")
        while hints.empty():
            await used.execute("SELECT 1")
    assert hints.get_nowait() == "meanwhile"

    await conn.execute("SELECT pg_notify('holdfast', 'after')")
    assert await asyncio.wait_for(hints.get(), 60) == "after"


@pytest.mark.parametrize("round_", range(3))
async def test_listener_reconnects_after_a_cut_while_idle_and_wakes_the_worker(heard: Any, conn: Any, round_: int) -> None:
    _, hints = heard
    await conn.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [await value(conn, BACKENDS)])
    assert await asyncio.wait_for(hints.get(), 60) == "", "for what was missed meanwhile"

    await conn.execute("SELECT pg_notify('holdfast', 'again')")
    assert await asyncio.wait_for(hints.get(), 60) == "again"


async def test_listener_reconnects_after_a_cut_in_use_and_wakes_the_worker(heard: Any, conn: Any) -> None:
    link, hints = heard
    with pytest.raises(Exception, match="terminat|closed|lost"):  # noqa: PT012
        async with link as used:
            await conn.execute("SELECT pg_terminate_backend(%s)", [used.info.backend_pid])
            while True:
                await used.execute("SELECT pg_sleep(0.01)")
    async with link as used:
        await used.execute("SELECT 1")
    assert await asyncio.wait_for(hints.get(), 60) == ""

    await conn.execute("SELECT pg_notify('holdfast', 'again')")
    assert await asyncio.wait_for(hints.get(), 60) == "again"


async def test_listener_uses_a_connection_that_was_opened_before(database: str, conn: Any) -> None:
    link, hints = ListeningLink(database), asyncio.Queue[str]()
    async with link as used:
        before = used.info.backend_pid
    listening = asyncio.create_task(link.listen(hints.put_nowait))
    try:
        assert await asyncio.wait_for(hints.get(), 60) == ""
        await conn.execute("SELECT pg_notify('holdfast', 'heard')")
        assert await asyncio.wait_for(hints.get(), 60) == "heard"
        async with link as used:
            assert used.info.backend_pid == before, "no second connection, and the plans of the first are kept"
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await link.close()
