"""Event streams on a real server: what they hear, how soon, and that nobody pays for them while nobody watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest

from api_factories import GENEROUS
from conformance.conftest import serving
from factories import add, rows
from holdfast import Worker, WorkerOptions
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.database.pool import pool
from holdfast.jobs import watch
from holdfast.jobs.read import CAP
from holdfast.worker.direct import Direct
from holdfast.worker.kinds import Job, Policy
from holdfast.worker.remote import Remote

Conn = psycopg.AsyncConnection[Any]
NEVER = replace(GENEROUS, poll=timedelta(hours=1))  # so that only a word can be heard


@asynccontextmanager
async def plane(database: str, conn: Conn, options: Any = NEVER) -> AsyncIterator[httpx.AsyncClient]:
    """A control plane on a real server, and a client of it."""
    _, token = await create_token(conn, "watcher", Role.ADMIN, by="test")
    with serving(make_app(pool(database, most=8), options, hints_from=database)) as url:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=90, trust_env=False) as client:
            yield client


async def heard(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream: name and data."""
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not reached():
            await asyncio.sleep(0.02)


async def test_a_console_hears_of_every_job_however_many_there_are(conn: Conn, database: str):
    """Counts stop at their cap; a stream that told of counts alone would fall silent on a large table."""
    many = "INSERT INTO holdfast.jobs (kind, payload) SELECT 'k', '{}' FROM generate_series(1, %s)"
    await conn.execute(many, [CAP + 1])
    async with plane(database, conn, GENEROUS) as client, client.stream("GET", "/api/events") as answer:
        stream = heard(answer)
        async with asyncio.timeout(90):
            _, before = await anext(stream)
            assert before["jobs"]["pending"] == {"value": CAP, "capped": True}
            made = await add(conn, "k")
            async for _, after in stream:
                assert after["jobs"] == before["jobs"]
                if after["newest_job"] == made:
                    break


async def test_what_a_console_asks_for_reads_no_history(conn: Conn):
    """However long that is: it has no index that a look could use."""
    plan = "\n".join(row[0] for row in await rows(conn, f"EXPLAIN {watch.NEWEST}"))

    assert "jobs_pkey" in plan
    assert "on history" not in plan.replace("history_id_seq", "sequence")


async def at_work(transport: Any, name: str, watched: Callable[[], bool]) -> None:
    """A worker that completes one job, once it knows that somebody watches."""

    async def slow() -> None:
        await until(watched)

    await asyncio.wait_for(
        Worker(transport, [Job(name, slow, Policy())], WorkerOptions(concurrency=1)).run(until_empty=True), 90
    )


@pytest.mark.parametrize("path", ["/api/jobs/{job}/events", "/api/events"])
async def test_an_end_is_heard_without_a_look(conn: Conn, database: str, path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "SAY_EVERY", 0.0)
    job = await add(conn, "slow")
    transport, may_end = Direct(database), asyncio.Event()
    async with plane(database, conn) as client, client.stream("GET", path.format(job=job)) as answer:
        stream = heard(answer)
        async with asyncio.timeout(90):
            await anext(stream)
            working = asyncio.create_task(at_work(transport, "slow", may_end.is_set))
            while not transport._watchers.is_watched:  # hints as enqueues bring them make the hub say that somebody watches
                await conn.execute("SELECT pg_notify('holdfast', 'another queue')")
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)  # let the last hint be forgotten: it must not be what brings the news
            may_end.set()
            async for _, said in stream:
                if said.get("state") == "completed" or said.get("jobs", {}).get("completed", {}).get("value") == 1:
                    break
            else:
                pytest.fail("the stream ended before the job's end was heard")
    await working


async def test_an_end_that_comes_over_http_is_heard_without_a_look(conn: Conn, database: str):
    _, token = await create_token(conn, "remote", Role.WORKER, by="test")
    job = await add(conn, "slow")
    async with plane(database, conn) as client, client.stream("GET", f"/api/jobs/{job}/events") as answer:
        stream = heard(answer)
        async with asyncio.timeout(90):
            await anext(stream)
            working = asyncio.create_task(at_work(Remote(str(client.base_url), token), "slow", lambda: True))
            async for _, said in stream:
                if said.get("state") == "completed":
                    break
            else:
                pytest.fail("the stream ended before the job's end was heard")
            await working  # before its API goes away


async def test_while_nobody_watches_nobody_is_told(conn: Conn, database: str):
    told = await _words(database, lambda: at_work(Direct(database), "slow", lambda: True), conn)

    assert told == []


async def _words(database: str, act: Callable[[], Awaitable[None]], conn: Conn) -> list[str]:
    """The words to those who watch that were sent meanwhile."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as listening:
        await listening.execute(f"LISTEN {watch.CHANGES}")
        await add(conn, "slow")
        await act()
        await conn.execute(f"SELECT pg_notify('{watch.CHANGES}', 'the end')")
        return [one.payload async for one in listening.notifies(timeout=90, stop_after=1) if one.payload != "the end"]


async def test_a_burst_of_changes_is_two_words(database: str):
    """One at once, and one for all that came after it."""
    said: list[str] = []

    @asynccontextmanager
    async def borrow() -> AsyncIterator[Any]:
        class Noting:
            async def execute(self, statement: str) -> None:
                said.append(statement)

        yield Noting()

    teller = watch.Teller(borrow)
    teller.changed()
    await asyncio.sleep(0)
    assert not said, "nobody watches"
    assert teller.hear(watch.WATCHED)
    assert not teller.hear("default")
    for _ in range(1000):
        teller.changed()
    await until(lambda: len(said) == 1)
    for _ in range(1000):
        teller.changed()
    await until(lambda: teller._telling is None)

    assert len(said) == 2
    await teller.close()
