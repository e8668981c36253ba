"""The Python client against the real API: from a mapping to Parquet, with a card that lives and escapes what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from export_factories import mapping
from holdfast.client import ApiError, Connection, SnapshotFailed
from holdfast.client.asking import Asking
from holdfast.client.cards import card
from holdfast.client.showing import LiveCard
from holdfast.jobs.cancel import abort
from holdfast.services.exports.engines.opened import Engines
from holdfast.services.exports.engines.opening import open_engine
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings
from holdfast.testing import harness

RANGES = {
    "Customer": "SELECT i AS id, 'n' || i AS name, i % 7 AS age FROM range(1000) t(i)",
    "Account": "SELECT 'a' || i AS number, i * 1.5::DOUBLE AS balance FROM range(500) t(i)",
    "OWNS": "SELECT i AS customer_id, 'a' || (i % 500) AS account_number, DATE '2026-01-01' AS since FROM range(900) t(i)",
}


def bank() -> dict[str, Any]:
    made = mapping()
    return {
        **made,
        "nodes": [{**one, "sql": RANGES[one["label"]]} for one in made["nodes"]],
        "edges": [{**one, "sql": RANGES[one["type"]]} for one in made["edges"]],
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def here(folder: Path) -> Exports:
    return Exports(Engines({"duckdb": lambda: open_engine("duckdb", settings())}), root=str(folder / "snapshots"))


class IntoTheApp(httpx.BaseTransport):
    """The app in this event loop, for a client in a thread."""

    def __init__(self, client: httpx.AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {**request.headers, **self._client.headers}
        asked = self._client.request(request.method, request.url.raw_path.decode(), content=request.read(), headers=headers)
        answer = asyncio.run_coroutine_threadsafe(asked, self._loop).result(60)
        return httpx.Response(answer.status_code, content=answer.content, headers={"content-type": "application/json"})


@pytest.fixture
async def plane(ops: httpx.AsyncClient) -> Connection:
    return Connection(Asking("http://plane", None, IntoTheApp(ops, asyncio.get_running_loop())))


async def test_from_a_mapping_to_files_with_one_call_and_a_word_about_each_step(plane: Connection, database: str) -> None:
    made = await asyncio.to_thread(plane.mappings.apply, bank())
    again = await asyncio.to_thread(plane.mappings.apply, bank())
    assert (made.version, again.version, again.id) == (1, 1, made.id)
    seen: list[float] = []
    waiting = asyncio.create_task(
        asyncio.to_thread(
            plane.snapshots.create_and_wait, made, poll=0.05, on_progress=lambda one: seen.append(one.share), timeout=120
        )
    )
    async with harness(database, KINDS) as h:
        while not waiting.done():
            await h.drain()
            await asyncio.sleep(0.05)
    snapshot = await waiting

    assert (snapshot.status, snapshot.share, seen[-1]) == ("ready", 1.0, 1.0)
    assert [len(files) for files in snapshot.files.values()] == [1, 1, 1]
    assert "1,000" in snapshot._repr_mimebundle_()["text/html"]
    assert repr(snapshot).startswith(f"<snapshot {snapshot.id} ready 100%: 2,400 rows")


async def test_every_mistake_is_in_the_error_and_a_failed_snapshot_raises(plane: Connection, conn: Any) -> None:
    bad = {**bank(), "nodes": [{**bank()["nodes"][0], "label": "1st"}], "edges": []}
    with pytest.raises(ApiError, match="/nodes/0/label") as refused:
        await asyncio.to_thread(plane.mappings.apply, bad)
    assert (refused.value.code, len(refused.value.errors)) == ("VALIDATION_FAILED", 1)

    made = await asyncio.to_thread(plane.mappings.apply, bank())
    snapshot = await asyncio.to_thread(plane.snapshots.create, made)
    await abort(conn, snapshot.data["snapshot"]["pipeline_id"], actor="test", reason="enough")
    with pytest.raises(SnapshotFailed, match="is cancelled"):
        await asyncio.to_thread(lambda: snapshot.refresh().wait(10))


def test_a_card_escapes_whatever_comes_from_outside_and_follows_the_theme() -> None:
    html = card("<script>", {"status": "failed", "error": '"><img src=x onerror=alert(1)>'}, ["a"], [["<b>bold</b>"]])

    assert "<script>" not in html
    assert "<img" not in html
    assert "<b>bold" not in html
    assert "light-dark(" in html


def test_a_notebook_has_one_output_that_is_replaced() -> None:
    shown: list[Any] = []

    def display(thing: Any, display_id: bool) -> Any:
        shown.append(thing)
        return SimpleNamespace(update=lambda again: shown.append(("again", again)))

    live = LiveCard(display)
    for number in (1, 2, 3):
        live.update(number, [])

    assert shown == [1, ("again", 2), ("again", 3)]
