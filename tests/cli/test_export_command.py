"""`holdfast export run`, by both ways: a job is made, followed to its end, and its files are there."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from running import Run

from holdfast.services.exports.export.run import run as export_run
from holdfast.services.exports.kinds import KINDS
from holdfast.settings import settings
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions


@pytest.fixture
def working(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker that runs exports, in a thread of its own; it may read the folder `data`, and write where anybody may."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("HOLDFAST_DUCKDB_DIRS", "data")
    settings.cache_clear()
    worker = Worker(database, [export_run], WorkerOptions(name="exports"))
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    yield
    worker.stop()
    thread.join(60)
    settings.cache_clear()
    assert not thread.is_alive()


def test_an_export_that_could_only_fail_is_refused_at_once(command: Run):
    made = command("export", "run", "--sql", "DROP TABLE t", "--to", "exports/a")

    assert made.code not in (0, Exit.FAILED)
    assert "must be a SELECT" in made.err


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_an_export_is_followed_to_its_files(command: Run, tmp_path: Path, how: str):
    (tmp_path / "data/people.csv").write_text("name,age\nada,36\ngrace,85\n")
    (tmp_path / "query.sql").write_text("SELECT upper(name) AS name, age FROM 'data/people.csv' ORDER BY age")

    made = command("export", "run", "--sql", "@query.sql", "--to", "exports/people", how, "--timeout", "2m", "-o", "json")

    assert made.code == 0, made.err
    result = json.loads(made.out)["result"]
    assert (result["rows"], result["to"]) == (2, (tmp_path / "exports/people").as_uri())
    (file,) = result["files"]
    table = pq.read_table(tmp_path / "exports/people" / file["path"], partitioning=None)
    assert table.to_pylist() == [{"name": "ADA", "age": 36}, {"name": "GRACE", "age": 85}]


@pytest.mark.usefixtures("working")
def test_a_query_that_cannot_run_fails_with_its_reason(command: Run):
    made = command(
        "export", "run", "--sql", "SELECT * FROM nowhere", "--to", "exports/a", "--wait", "--timeout", "2m", "-o", "json"
    )

    assert made.code == Exit.FAILED
    assert "engine_query_refused" in json.loads(made.out)["error"]


def test_without_waiting_the_job_is_named(command: Run, tmp_path: Path):
    made = command("export", "run", "--sql", "SELECT 1 AS x", "--to", "out", "--max-duration", "2h", "-o", "json")

    job = json.loads(made.out)
    assert (job["kind"], job["payload"]["to"], job["payload"]["max_seconds"]) == ("exports.run", str(tmp_path / "out"), 7200)


def test_no_time_at_all_is_refused(direct: Run):
    refused = direct("export", "run", "--sql", "SELECT 1 AS x", "--to", "out", "--max-duration", "0s")

    assert (refused.code, "--max-duration must be positive, not 0s" in refused.err) == (Exit.USAGE, True)


@pytest.mark.parametrize("kind", sorted(kind.kind for kind in KINDS if not kind.policy.public))
def test_a_reserved_kind_is_refused(command: Run, kind: str):
    refused = command("job", "enqueue", kind)

    assert refused.code not in (0, Exit.FAILED)
    assert "does not declare it public" in refused.err
