"""A connection that is cut under a handler of a remote worker: what may be done twice is sent again, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from conformance.conftest import Api
from conformance.cutting import Cut, cutting
from conformance.test_whole_jobs import QUICK, a_kind, working
from factories import hold, moves_of, replace, rows
from holdfast import Context
from holdfast.errors import Unreachable
from holdfast.jobs import effects
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import Claim
from holdfast.worker import line
from holdfast.worker.remote import Remote
from workers import ended

When = Literal["before", "after"]
WORDS = [b"/progress HTTP", b"/checkpoint HTTP", b"GET /api/worker/jobs", b"/adopt HTTP", b"PUT /api/worker/jobs"]


@asynccontextmanager
async def cut_at(word: bytes, when: When, api: Api) -> AsyncIterator[tuple[Remote, Cut]]:
    to = urlsplit(api.url)
    async with cutting(to.hostname or "", to.port or 0, word, when) as cut:
        remote = Remote(f"http://127.0.0.1:{cut.port}", api.token)
        yield remote, cut
        await remote.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.decode().split("/")[-1])
async def test_a_cut_costs_no_attempt(word: bytes, when: When, api: Api, conn: Any) -> None:
    held = await hold(conn, max_attempts=1)
    left = await effects.plan(conn, held, "query", tag="t", adoptable=True)
    mine = await replace(conn, held)

    async with cut_at(word, when, api) as (remote, cut):
        await remote.progress(mine, 0.5, "half")
        await remote.checkpoint(mine)
        (found,) = await remote.left_behind(mine)
        adopted = await remote.adopt(mine, found, {"query": 1})
        confirmed = await remote.confirm(mine, adopted, {"query": 2})

        assert cut.done.is_set()
    assert (found.id, confirmed.id) == (left.id, left.id)
    assert await rows(conn, "SELECT progress, message FROM holdfast.jobs WHERE id = %s", mine.id) == [(0.5, "half")]
    assert await rows(conn, "SELECT handle, state FROM holdfast.effects") == [({"query": 2}, "made")]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_handler_that_reports_its_progress_does_not_notice(when: When, api: Api, conn: Any) -> None:
    async def reports(ctx: Context) -> str:
        await ctx.progress(0.5, "half")
        return "done"

    kind = a_kind(reports, max_attempts=1)
    made = await enqueue(conn, kind.new())
    async with cut_at(b"/progress HTTP", when, api) as (remote, cut), working(remote, kind, options=QUICK):
        job = await ended(conn, made.id)

        assert cut.done.is_set()
    assert (job.state, job.attempt_no, job.errors) == ("completed", 1, 0)
    assert await moves_of(conn, made.id) == ["complete"]


async def test_an_effect_is_not_planned_twice(api: Api, conn: Any) -> None:
    """It may have been written: a second row would be a second thing to clean."""
    claim = await hold(conn)

    async with cut_at(b"/effects HTTP", "after", api) as (remote, _):
        with pytest.raises(Unreachable):
            await remote.plan(claim, "query", tag="t", detail=None, temporary=False, adoptable=False)

    assert await rows(conn, "SELECT count(*) FROM holdfast.effects") == [(1,)]


async def test_a_server_that_always_cuts_is_asked_a_bounded_number_of_times(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(line, "_sleep", at_once)
    claim: Claim = await hold(conn)
    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    remote = Remote(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "token")
    async with server:
        with pytest.raises(Unreachable):
            await remote.progress(claim, 0.5, None)
    await remote.close()

    assert len(asked) == line.RESENDS
