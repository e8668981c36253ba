"""The real command on a real Postgres, by both ways: over HTTP to a real server, and straight to the database."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvicorn
from running import GENEROUS, Result, Run, Served

from factories import publish_kinds
from holdfast import catalog, cli
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.plane import ApiOptions
from holdfast.api.policy import Role
from holdfast.apps.loops import ScheduledLoops
from holdfast.cli import main
from holdfast.database.pool import pool
from holdfast.settings import settings

Conn = psycopg.AsyncConnection[Any]
# A process runs one command, and builds its parser once. The tests run hundreds, and building takes longer than most of them.
cli.get_command = functools.cache(cli.get_command)


@pytest.fixture(autouse=True)
def no_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the machine's own configuration: an empty directory, a fixed width, no settings, UTC."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "API_URL", "TOKEN", "DATA_DIR"):
        monkeypatch.delenv(f"HOLDFAST_{name}", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("HOLDFAST_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process: `run("job", "list")`. Its streams are no terminals."""

    def command(*words: str) -> Result:
        settings.cache_clear()
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return Result(int(end.value.code or 0), told.out, told.err)

    return command


@pytest.fixture
def do(database: str) -> Callable[[Callable[[Conn], Awaitable[Any]]], Any]:
    """Do something to the database from outside: `do(lambda conn: add(conn, "k"))`."""

    def work(act: Callable[[Conn], Awaitable[Any]]) -> Any:
        async def on_a_connection() -> Any:
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
                return await act(conn)

        return asyncio.run(on_a_connection())

    return work


class Server(uvicorn.Server):
    """One that says where it listens, and leaves the signals to the tests."""

    def install_signal_handlers(self) -> None: ...


@pytest.fixture
def options() -> ApiOptions:
    """How the API behaves; a module that needs it otherwise overrides this."""
    return GENEROUS


@pytest.fixture
def served(database: str, options: ApiOptions, do: Any) -> Iterator[Served]:
    """The API on a port of its own, in a thread of its own."""
    services = catalog.resources(settings())
    publish_kinds(database)
    app = make_app(pool(database), options, loops=ScheduledLoops(), nouns=catalog.nouns(), services=services)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none")
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended while it started"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    _, token = do(lambda conn: create_token(conn, "ada", Role.ADMIN, by="test"))
    yield Served(f"http://127.0.0.1:{port}", token)
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def direct(run: Run, database: str) -> Run:
    """The command, straight to the database."""
    publish_kinds(database)
    return lambda *words: run(*words, "--dsn", database)


@pytest.fixture
def over_http(run: Run, served: Served, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, through the API."""
    monkeypatch.setenv("HOLDFAST_TOKEN", served.token)
    return lambda *words: run(*words, "--url", served.url)


@pytest.fixture(params=["over_http", "direct"])
def command(request: pytest.FixtureRequest) -> Run:
    """The command by either way; each test runs by both."""
    found: Run = request.getfixturevalue(request.param)
    return found
