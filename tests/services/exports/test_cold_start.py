"""A Trino that is asleep: it takes the statement and does not answer for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.engines.trino.engine import TrinoEngine
from holdfast.services.exports.export import direct
from holdfast.services.exports.export import run as run_module
from holdfast.services.exports.export.run import run
from holdfast.settings import settings
from holdfast.testing import Harness, harness
from trino_server import Request, Result, TrinoServer, sig

POST = "POST /v1/statement"
SQL = "SELECT id FROM people"


class Scene:
    """A Trino, our engine on it, and the pauses between the tries of an export."""

    def __init__(self, server: TrinoServer, engine: TrinoEngine) -> None:
        self.server, self.engine = server, engine
        self.pauses: list[float] = []

    def sent(self) -> list[str]:
        """What was submitted, in order."""
        return ["find" if "system.runtime.queries" in one.sql else one.sql for one in self.server.sent(POST)]

    def be_patient(self) -> None:
        """Only the first answer is late: from now on no slow machine is taken for a sleeping engine."""
        client = self.engine._client.transport._client
        assert client is not None
        client.timeout = httpx2.Timeout(60)


async def asleep(_: Request) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    async with TrinoServer(lambda _: Result([("id", sig("bigint"))], [[n] for n in range(30)])) as server:
        engine = open_trino(TrinoOptions(server.url, "export", read_seconds=0.3, connect_seconds=60.0, role_required=False))
        made = Scene(server, engine)

        @asynccontextmanager
        async def ours(*_: Any) -> AsyncIterator[TrinoEngine]:
            yield engine

        async def pause(seconds: float) -> None:
            made.pauses.append(seconds)

        monkeypatch.setattr(run_module, "opened_engine", ours)
        monkeypatch.setattr(direct, "pause", pause)
        yield made
        await engine.close()
    settings.cache_clear()


@pytest.fixture
async def h(database: str, scene: Scene) -> AsyncIterator[Harness]:
    async with harness(database, [run]) as made:
        yield made


async def test_w_12_an_engine_that_wakes_up_is_asked_again_after_its_lost_query_was_stopped(
    h: Harness, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W-12: the statement arrived and began, and its answer never came."""

    async def begins_and_is_silent(request: Request) -> bytes:
        await scene.server.behave(request)
        (query,) = scene.server.queries.values()
        scene.server._begin(query)
        return await asleep(request)

    async def pause(seconds: float) -> None:
        scene.pauses.append(seconds)
        scene.be_patient()

    monkeypatch.setattr(direct, "pause", pause)
    scene.server.misbehave(POST, begins_and_is_silent)

    done = await h.run(run.new(sql=SQL, to=str(tmp_path / "out"), engine="trino"))

    assert (done.state, done.result["rows"]) == ("completed", 30)
    assert scene.pauses == [5.0]
    assert scene.sent() == [SQL, "find", SQL]
    lost = next(iter(scene.server.queries.values()))
    assert lost.error is not None, "stopped before the second was sent"
    assert lost.error["errorName"] == "USER_CANCELED"


async def test_w_12_an_engine_that_stays_asleep_fails_the_export_after_two_retries_and_one_submit(
    h: Harness, scene: Scene, tmp_path: Path
) -> None:
    """W-12: nothing can be looked up, so nothing is sent again."""
    scene.server.misbehave(POST, asleep, times=100)

    done = await h.run(run.new(sql=SQL, to=str(tmp_path / "out"), engine="trino"))

    assert (done.state, done.error) == ("failed", "Direct export failed after 2 retries: SubmitTimeout")
    assert scene.pauses == [5.0, 5.0]
    assert scene.sent() == [SQL, "find", "find"]
