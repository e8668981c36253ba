"""Event streams on a real server: events, latency, and no cost without clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import psycopg
import pytest

from api_factories import GENEROUS
from conformance.conftest import serving
from factories import add, rows
from holdfast import Worker, WorkerOptions
from holdfast.api.app import make_app
from holdfast.api.auth import Valid, create_token
from holdfast.api.plane import Principal
from holdfast.api.policy import Role
from holdfast.database.pool import pool
from holdfast.jobs.cancel import cancel
from holdfast.jobs.views import watch
from holdfast.jobs.views.read import CAP
from holdfast.worker.kinds import Job, Policy
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.remote import Remote

Conn = psycopg.AsyncConnection[Any]
NEVER = replace(GENEROUS, poll=timedelta(hours=1))  # so that only a word can be heard


@asynccontextmanager
async def plane(database: str, conn: Conn, options: Any = NEVER) -> AsyncIterator[httpx2.AsyncClient]:
    """A control plane on a real server, and a client of it."""
    _, token = await create_token(conn, "watcher", Role.ADMIN, by="test")
    with serving(make_app(pool(database, most=8), options, hints_from=database)) as url:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=90, trust_env=False) as client:
            yield client


async def heard(answer: httpx2.Response) -> AsyncIterator[tuple[str, Any]]:
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


async def test_console_stream_has_every_job(conn: Conn, database: str):
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


async def test_console_stream_query_reads_no_history(conn: Conn):
    """However long that is: it has no index that a look could use."""
    await conn.execute("SET enable_seqscan = off")  # it is chosen for a table that autovacuum has just found empty
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
async def test_end_of_a_job_is_streamed_without_polling(conn: Conn, database: str, path: str, monkeypatch: pytest.MonkeyPatch):
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


async def test_end_over_http_is_streamed_without_polling(conn: Conn, database: str):
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


@pytest.mark.parametrize("how", ["revoked_at = clock_timestamp()", "expires_at = clock_timestamp()"])
async def test_a_stream_ends_with_its_token(conn: Conn, database: str, how: str):
    """Who could not come in any more hears nothing more."""
    async with plane(database, conn, replace(GENEROUS, ping=timedelta(seconds=0.2))) as client:
        other = await create_token(conn, "other", Role.VIEWER, by="test")
        headers = {"Authorization": f"Bearer {other[1]}"}
        async with (
            client.stream("GET", "/api/events") as answer,
            client.stream("GET", "/api/events", headers=headers) as others,
            asyncio.timeout(90),
        ):
            stream = heard(answer)
            await anext(stream)
            await conn.execute(f"UPDATE holdfast.tokens SET {how} WHERE name = 'watcher'")
            async for _ in stream:
                pass
            assert (await client.get("/api/events")).status_code == 401
            made = await add(conn, "k")
            async for _, told in heard(others):
                if told["newest_job"] == made:
                    break


async def test_streams_per_principal_are_limited(conn: Conn, database: str):
    """Else one could take the room of everybody."""
    async with (
        plane(database, conn, replace(GENEROUS, streams_each=2)) as client,
        asyncio.timeout(90),
        client.stream("GET", "/api/events") as first,
        client.stream("GET", "/api/events") as second,
    ):
        streams = [heard(first), heard(second)]  # both are kept: who lets go of one closes it
        for stream in streams:
            await anext(stream)
        refused = await client.get("/api/events")
        assert (refused.status_code, refused.json()["code"]) == (503, "TOO_MANY_STREAMS")
        assert "token:watcher has 2 streams open" in refused.json()["detail"]
        _, token = await create_token(conn, "other", Role.VIEWER, by="test")
        async with client.stream("GET", "/api/events", headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status_code == 200


async def test_failed_poll_does_not_end_the_stream(conn: Conn, database: str, monkeypatch: pytest.MonkeyPatch):
    """A fault of ours must not make every stream fall silent until somebody restarts the process."""
    asked: list[int] = []
    glance = watch.glance

    async def faulty(*given: Any) -> Any:
        asked.append(1)
        if 2 <= len(asked) < 6:
            raise ZeroDivisionError("a fault of ours")
        return await glance(*given)

    job = await add(conn, "k")
    async with (
        plane(database, conn, GENEROUS) as client,
        client.stream("GET", f"/api/jobs/{job}/events") as answer,
        asyncio.timeout(90),
    ):
        stream = heard(answer)
        await anext(stream)
        asked.clear()
        monkeypatch.setattr(watch, "glance", faulty)
        await until(lambda: len(asked) >= 6)
        await cancel(conn, job, actor="test")
        async for name, _ in stream:
            if name == "stream_closed":
                break
        else:
            pytest.fail("the stream ended before the job's end was heard")


def test_revoked_or_expired_principal_is_detected():
    token, person = Principal("token:a", "token", None, token_id="a"), Principal("oidc:b", "oidc", None, expires_at=100.0)

    assert [Valid(live, set(), 0.0).knows(token) for live in ({"a"}, {"b"}, set())] == [True, False, False]
    assert [Valid(set(), set(), now).knows(person) for now in (99.0, 100.0)] == [True, False]
    assert Valid(set(), set(), 1e12).knows(Principal("gateway:c", "gateway", None)), "a gateway would have to be asked"
    for caller in (replace(token, session_id="s"), replace(person, session_id="s")):
        assert [Valid({"a"}, ended, 0.0).knows(caller) for ended in (set(), {"s"})] == [True, False]


async def test_no_notification_without_watchers(conn: Conn, database: str):
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


async def test_burst_of_changes_sends_two_notifications(database: str):
    """One at once, and one for all that came after it."""
    said: list[str] = []

    @asynccontextmanager
    async def borrow() -> AsyncIterator[Any]:
        class Noting:
            async def execute(self, statement: str) -> None:
                said.append(statement)

        yield Noting()

    notifier = watch.ChangeNotifier(borrow)
    notifier.changed()
    await asyncio.sleep(0)
    assert not said, "nobody watches"
    assert notifier.receive(watch.WATCHED)
    assert not notifier.receive("default")
    for _ in range(1000):
        notifier.changed()
    await until(lambda: len(said) == 1)
    for _ in range(1000):
        notifier.changed()
    await until(lambda: notifier._telling is None)

    assert len(said) == 2
    await notifier.close()
