"""`client.wait`: the job when it has ended, by a hint or by polling, and why not if it takes too long."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from factories import add, end, hold, take
from holdfast import JobFailed, WaitTimedOut
from holdfast.errors import NotFound
from holdfast.jobs import wait
from holdfast.jobs.cancel import cancel
from holdfast.jobs.client import connect as connect_client
from holdfast.jobs.outcome import Done, Fail
from holdfast.jobs.views.watch import SAY_CHANGED


async def test_wait_returns_immediately_for_an_ended_job(conn: Any, database: str) -> None:
    claim = await hold(conn)
    await end(conn, claim, Done({"rows": 5}))

    async with connect_client(database) as client:
        ended = await client.wait(claim.id, timeout=60, raise_on_failure=True)

    assert (ended.state, ended.result) == ("completed", {"rows": 5})


async def test_many_waiters_share_a_small_pool(conn: Any, database: str) -> None:
    claims = [await hold(conn) for _ in range(10)]

    async with connect_client(database, most=1) as client:
        waits = [asyncio.create_task(client.wait(claim.id, timeout=timedelta(minutes=1))) for claim in claims]
        for claim in claims:
            await end(conn, claim)
        ended = await asyncio.gather(*waits)
        assert client._waiting._listening is None, "the last waiter stops listening"

    assert [one.state for one in ended] == ["completed"] * 10


async def test_wait_returns_on_a_notification(conn: Any, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is switched off: only the notification can end this wait."""
    monkeypatch.setattr(wait, "FIRST_POLL", 3600.0)
    monkeypatch.setattr(wait, "LONGEST_POLL", 3600.0)
    claim = await hold(conn)

    async with connect_client(database) as client:
        waiting = asyncio.create_task(client.wait(claim.id, timeout=120))
        await end(conn, claim)
        while not waiting.done():
            await conn.execute(SAY_CHANGED)
            await asyncio.sleep(0.05)

    assert (await waiting).state == "completed"


async def test_wait_returns_without_notifications(conn: Any, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening is switched off."""

    async def deaf(_: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(wait.Waiting, "_listen", deaf)
    claim = await hold(conn)

    async with connect_client(database) as client:
        waiting = asyncio.create_task(client.wait(claim.id, timeout=120))
        await asyncio.sleep(0)
        await end(conn, claim)
        assert (await waiting).state == "completed"


async def test_wait_returns_a_failure_or_raises_it(conn: Any, database: str) -> None:
    failed, stopped = await hold(conn), await add(conn)
    await end(conn, failed, Fail("the file is empty"))
    await cancel(conn, stopped, actor="me", reason="not needed")

    async with connect_client(database) as client:
        assert (await client.wait(failed.id)).state == "failed"
        with pytest.raises(JobFailed, match="failed: the file is empty") as raised:
            await client.wait(failed.id, raise_on_failure=True)
        with pytest.raises(JobFailed, match="cancelled: .*not needed"):
            await client.wait(stopped, raise_on_failure=True)

    assert raised.value.job.id == failed.id


async def test_timeout_error_includes_the_explanation(conn: Any, database: str) -> None:
    waiting = await add(conn, "nobody.runs.it")

    async with connect_client(database) as client:
        with pytest.raises(WaitTimedOut, match=r"has not ended after 0\.01 s: .*worker") as raised:
            await client.wait(waiting, timeout=0.01)
        with pytest.raises(NotFound):
            await client.wait(waiting + 1, timeout=5)

    assert isinstance(raised.value, TimeoutError)
    assert (await take(conn, waiting)).id == waiting, "it goes on"
