"""The command line and the client, on a real server and with a worker that is killed."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvicorn
from ingestion_factories import FACTORS, FLIGHTS, UNITS, YEAR, apply_co2

import holdfast.client
from api_factories import GENEROUS
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.apps.loops import ScheduledLoops
from holdfast.cli import main
from holdfast.database.pool import pool
from holdfast.services.ingestion.client import IngestionFailed
from holdfast.services.ingestion.demo import worker_process
from holdfast.services.ingestion.models.yaml_file import EXAMPLE
from holdfast.settings import settings

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of a back office; nothing of the machine's configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_INGESTION_TO", str(tmp_path / "uploads"))
    monkeypatch.setenv("HOLDFAST_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "160")
    for name, content in (("units", UNITS), ("factors", FACTORS), ("flights", FLIGHTS)):
        (tmp_path / f"{name}.csv").write_text(content)
    (tmp_path / "bad.csv").write_text(FLIGHTS.replace("1000", "many").replace("T2", "T4").replace("T3", "T5"))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


class Server(uvicorn.Server):
    def install_signal_handlers(self) -> None: ...


def once(database: str, act: Callable[[Any], Any]) -> Any:
    async def on_a_connection() -> Any:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            return await act(conn)

    return asyncio.run(on_a_connection())


@pytest.fixture
def served(database: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The API on a port of its own; its address and a token."""
    app = make_app(
        pool(database), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services=catalog.resources(settings())
    )
    server = Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    _, token = once(database, lambda conn: create_token(conn, "ada", Role.ADMIN, by="test"))
    yield f"http://127.0.0.1:{port}", token
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def working(database: str, folder: Path) -> Iterator[None]:
    """A worker process that is killed when it has validated its first file of entries, and a second one that takes over."""

    async def watch(stop: threading.Event) -> None:
        first = await worker_process(database, "first", folder / "uploads", "ingest.in_tx_loaded")
        assert await first.wait() == -signal.SIGKILL
        second = await worker_process(database, "second", folder / "uploads", None)
        await asyncio.to_thread(stop.wait)
        second.terminate()
        await second.wait()

    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(watch(stop)))
    thread.start()
    yield
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], served: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOLDFAST_TOKEN", served[1])

    def command(*words: str) -> tuple[int, str, str]:
        settings.cache_clear()
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*words, "--url", served[0]])
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return command


@pytest.mark.more
def test_a_back_office_at_the_terminal_while_workers_are_killed(run: Run, working: None, folder: Path, database: str) -> None:
    """N-02, K-48: the first worker is killed with SIGKILL inside the transaction of its load; nothing is lost or twice."""
    assert run("ingest", "model", "apply", str(EXAMPLE))[0] == 0
    assert run("ingest", "units", "units.csv", "--year", str(YEAR))[0] == 0
    assert run("ingest", "factors", "factors.csv", "--year", str(YEAR), "--module", "travel", "--det", "flights")[0] == 0
    scope = ("--module", "travel", "--det", "flights", "--year", str(YEAR))

    code, told, _ = run("ingest", "upload", "flights.csv", *scope)
    assert (code, "csv_ingest" in told, "aggregation" in told) == (0, True, True)
    code, told, said = run("ingest", "upload", "bad.csv", *scope, "--max-errors", "0")
    assert code == 1
    assert "1 bad rows are more than max_errors=0" in told + said
    job_id = once(database, newest_csv)
    code, told, _ = run("ingest", "errors", str(job_id))
    assert (code, "many" in told, "is not a decimal number" in told) == (0, True, True)
    assert run("ingest", "errors", str(job_id), "--download", "bad-rows.csv")[0] == 0
    assert (folder / "bad-rows.csv").read_text().splitlines()[1].startswith("T1,U1,2024-01-31,economy,many,Ada,2,")
    assert "FINISHED" in run("ingest", "status", str(job_id))[1]
    assert "csv_ingest" in run("ingest", "status", "--year", str(YEAR))[1]
    assert run("ingest", "recalc", "--year", str(YEAR), "--module", "travel")[0] == 0
    assert "600" in run("ingest", "stats", "--year", str(YEAR))[1]
    assert run("ingest", "upload", "none.csv", *scope)[0] != 0
    assert once(database, lambda conn: count(conn, "data_entries")) == 3


async def newest_csv(conn: Any) -> int:
    row = await (await conn.execute("SELECT max(job_id) FROM holdfast.ingestions WHERE job_type = 'csv_ingest'")).fetchone()
    return int(row[0])


async def count(conn: Any, table: str) -> int:
    row = await (await conn.execute(f"SELECT count(*) FROM holdfast.{table}")).fetchone()
    return int(row[0])


def test_a_notebook_uploads_waits_and_reads_bad_rows(
    served: tuple[str, str], working: None, folder: Path, database: str
) -> None:
    once(database, apply_co2)
    with holdfast.client.connect(served[0], token=served[1]) as hf:
        hf.ingestion.units(folder / "units.csv", year=YEAR).wait(show=False)
        scope = {"module": "travel", "det": "flights", "year": YEAR}
        done = hf.ingestion.ingest(folder / "flights.csv", **scope).wait(show=False)
        bad = hf.ingestion.ingest(folder / "bad.csv", **scope, policy={"max_errors": 0})
        with pytest.raises(IngestionFailed, match="nothing loaded: 1 bad rows"):
            bad.wait(show=False)

        assert (done.result, done.outcome["rows_loaded"]) == ("SUCCESS", 3)
        assert [one["job_type"] for one in done.pipeline] == ["csv_ingest", "emission_recalc", "aggregation"]
        assert "csv_ingest" in done._repr_html_()
        assert [one["line"] for one in bad.errors()] == [2]
        assert hf.ingestion.bad_rows(bad).startswith(b"trip_id,unit_id")
        assert hf.ingestion.statistics(YEAR) == []
        assert hf.ingestion.apply_model(EXAMPLE)["version"] == 1
        assert hf.ingestion.recalculate(year=YEAR, only_due=True).wait(show=False).result == "SUCCESS"
