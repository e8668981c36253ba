"""What the console costs: a fixed number of statements for each page, no connection for a tab, a small script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI
from tests.console.conftest import AsRole, Client, listening
from tests.console.scene import Scene
from tests.console.test_console_pages import addresses

import holdfast.console
from factories import add, value
from holdfast.api.sessions import SESSION

STATIC = Path(holdfast.console.__file__ or "").parent / "static"
# Statements of each page: two of the guard, one of the frame, and its own.
BUDGET = {
    "/console/": 16,
    "/console/jobs": 7,
    "/console/jobs/{}": 16,
    "/console/failures": 5,
    "/console/pipelines": 5,
    "/console/pipelines/{}": 5,
    "/console/periodic": 5,
    "/console/workers": 4,
    "/console/locks": 5,
    "/console/audit": 4,
    "/console/system": 22,
    "/console/mappings": 4,
    "/console/mappings/{}": 7,
    "/console/snapshots": 4,
    "/console/snapshots/{}": 5,
    "/console/graphs": 4,
    "/console/graphs/{}": 20,
    "/console/graphs/{}/query": 4,
    "/console/graphs/{}/algorithms": 4,
    "/console/tables": 7,
    "/console/tables/{}/{}": 7,
    "/console/{}": 4,  # table-policies
    "/console/{}/{}": 7,
    "/console/ingestion": 7,
    "/console/ingestion/upload": 4,
    "/console/ingestion/{}": 8,
}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that run in the block."""
    seen: list[str] = []
    execute = psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, *given: Any, **options: Any) -> Any:
        seen.append(" ".join(str(query).split())[:80])
        return await execute(self, query, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.AsyncCursor, "execute", noted)
        yield seen


@pytest.mark.more
async def test_each_page_has_a_fixed_number_of_statements_however_much_there_is(
    app: FastAPI, scene: Scene, ops: Client, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = {}, {}
    for found, jobs in ((few, 0), (many, 300)):
        await conn.execute(
            "INSERT INTO holdfast.jobs (kind, queue) SELECT 'k' || i %% 40, 'default' FROM generate_series(1, %s) i", [jobs]
        )
        for path in addresses(app, scene):
            with counted(monkeypatch) as seen:
                assert (await ops.get(path)).status_code == 200
            found[path] = len(seen)

    assert few == many
    for path, statements in many.items():
        parts = path.removeprefix("/console/").split("/")
        pattern = "/console/" + "/".join(["{}" if part and (part.isdecimal() or "-" in part) else part for part in parts])
        assert statements <= BUDGET[pattern], (path, statements)


@pytest.mark.more
async def test_two_hundred_tabs_use_no_connections_of_their_own_and_hear_of_a_change(
    app: FastAPI, ops: Client, conn: Any, as_role: AsRole
) -> None:
    """An event has a name and no data."""
    async with listening(app) as site:
        host, port = site.removeprefix("http://").split(":")
        cookie = f"{SESSION}={ops.cookies[SESSION]}"
        request = f"GET /console/events HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode()

        async def open_tab() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            await reader.readuntil(b"retry: 2000")
            return reader, writer

        tabs = [await open_tab() for _ in range(200)]
        before = await value(conn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        await add(conn)
        heard = await asyncio.wait_for(
            asyncio.gather(*(reader.readuntil(b"event: changed\ndata:\n\n") for reader, _ in tabs)), 60
        )
        after = await value(conn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        for _, writer in tabs:
            writer.close()

    assert len(heard) == 200
    assert not any(b"overview" in one or b"{" in one for one in heard)
    assert after <= before <= 12  # the pool of the app, its listener, and ours


def test_the_script_is_small_and_ours() -> None:
    script = (STATIC / "console.js").read_text()

    assert len(script.splitlines()) < 200
    assert "eval(" not in script
    assert "innerHTML" not in script
    assert sum(file.stat().st_size for file in STATIC.iterdir()) < 45_000


async def test_files_are_kept_by_browsers_and_nothing_else_can_be_read(as_role: AsRole) -> None:
    stranger = await as_role(None)

    found = await stranger.get("/console/static/console.css")
    others = [
        await stranger.get(f"/console/static/{name}") for name in ("../app.py", "%2e%2e/app.py", "app.py", "console.css/..")
    ]

    assert "immutable" in found.headers["Cache-Control"]
    assert [one.status_code for one in others] == [404, 404, 404, 404]
