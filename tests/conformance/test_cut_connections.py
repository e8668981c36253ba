"""Connections of a remote worker that are cut under a handler: idempotent requests are sent again, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from proof.proxy import Relay, relaying

from conformance.conftest import Api
from conformance.test_whole_jobs import QUICK, a_kind, working
from factories import hold, moves_of, replace, rows
from holdfast import Context
from holdfast.errors import Unreachable
from holdfast.jobs import effects
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import Claim
from holdfast.worker.transports import http
from holdfast.worker.transports.remote import Remote
from workers import ended

When = Literal["before", "after"]
WORDS = ["/progress HTTP", "/checkpoint HTTP", "GET /api/worker/jobs", "/adopt HTTP", "PUT /api/worker/jobs"]


@asynccontextmanager
async def cut_at(word: str, when: When, api: Api) -> AsyncIterator[tuple[Remote, Relay]]:
    """A remote worker whose connection is cut once, at the first request with this text."""
    async with relaying(api.url) as relay:
        relay.cut(word, when)
        remote = Remote(relay.url, api.token)
        yield remote, relay
        await remote.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.split("/")[-1])
async def test_cut_connection_uses_no_attempt(word: str, when: When, api: Api, conn: Any) -> None:
    held = await hold(conn, max_attempts=1)
    left = await effects.plan(conn, held, "query", tag="t", adoptable=True)
    mine = await replace(conn, held)

    async with cut_at(word, when, api) as (remote, relay):
        await remote.progress(mine, 0.5, "half")
        await remote.checkpoint(mine)
        (found,) = await remote.left_behind(mine)
        adopted = await remote.adopt(mine, found, {"query": 1})
        confirmed = await remote.confirm(mine, adopted, {"query": 2})

        assert relay.cuts_made == 1
    assert (found.id, confirmed.id) == (left.id, left.id)
    assert await rows(conn, "SELECT progress, message FROM holdfast.jobs WHERE id = %s", mine.id) == [(0.5, "half")]
    assert await rows(conn, "SELECT handle, state FROM holdfast.effects") == [({"query": 2}, "made")]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_progress_survives_a_cut_connection(when: When, api: Api, conn: Any) -> None:
    async def reports(ctx: Context) -> str:
        await ctx.progress(0.5, "half")
        return "done"

    kind = a_kind(reports, max_attempts=1)
    made = await enqueue(conn, kind.new())
    async with cut_at("/progress HTTP", when, api) as (remote, relay), working(remote, kind, options=QUICK):
        job = await ended(conn, made.id)

        assert relay.cuts_made == 1
    assert (job.state, job.attempt_no, job.errors) == ("completed", 1, 0)
    assert await moves_of(conn, made.id) == ["complete"]


async def test_an_effect_is_not_planned_twice(api: Api, conn: Any) -> None:
    """It may have been written: a second row would be a second thing to clean."""
    claim = await hold(conn)

    async with cut_at("/effects HTTP", "after", api) as (remote, _):
        with pytest.raises(Unreachable):
            await remote.plan(claim, "query", tag="t", detail=None, temporary=False, adoptable=False)

    assert await rows(conn, "SELECT count(*) FROM holdfast.effects") == [(1,)]


async def test_retries_on_cut_connections_are_bounded(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(http, "_sleep", at_once)
    claim: Claim = await hold(conn)
    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    remote = Remote(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "token")
    async with server:
        with pytest.raises(Unreachable):
            await remote.progress(claim, 0.5, None)
    await remote.close()

    assert len(asked) == http.RESENDS
