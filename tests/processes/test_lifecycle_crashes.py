"""A scheduler killed while it deletes an expired snapshot: the row stays until the files are deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import programs
from programs import Started

pytestmark = pytest.mark.processes

PATIENCE = 60.0
SNAPSHOT = """
    WITH m AS (
        INSERT INTO holdfast.mappings (owner, name, engine) VALUES ('ada', 'bank', 'duckdb') RETURNING id
    ), v AS (
        INSERT INTO holdfast.mapping_versions (mapping_id, version, nodes, edges, created_by)
        SELECT id, 1, '[{}]', '[]', 'ada' FROM m RETURNING mapping_id
    )
    INSERT INTO holdfast.snapshots (mapping_id, mapping_version, owner, name, state, engine, location, pipeline_id, error, ttl,
        created_at, finished_at)
    SELECT mapping_id, 1, 'ada', 'bank', 'failed', 'duckdb', %s, gen_random_uuid(), 'test', 'PT1H',
        clock_timestamp() - interval '2 hours', clock_timestamp() FROM v RETURNING id
"""
# Time is moved by moving rows.
DUE = "UPDATE holdfast.loops SET next_due_at = clock_timestamp() WHERE name = 'lifecycle'"
FREE = "UPDATE holdfast.loops SET held_until = clock_timestamp() WHERE name = 'lifecycle'"


@pytest.fixture
def start(tmp_path: Path, database: str) -> Iterator[Callable[..., Started]]:
    """Starts schedulers; whatever is left of them is killed afterwards."""
    started: list[Started] = []

    def run(**environment: str) -> Started:
        own = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        settings = {
            "HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2",
            "HOLDFAST_DATABASE_URL": database,
            "HOLDFAST_EXPORT_DIRS": str(tmp_path),
        }
        with (tmp_path / "log").open("a") as log:
            process = programs.start(
                *("scheduler", "run", "--log-format", "json"),
                env={**own, **settings, **environment},
                folder=tmp_path,
                out=log,
                err=log,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def until(reached: Callable[[], Any], tmp_path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.01)


@pytest.mark.parametrize(("point", "is_left"), [("lifecycle.marked", True), ("lifecycle.files_removed", False)])
def test_l_03_scheduler_killed_between_files_and_row_leaves_the_row(
    point: str, is_left: bool, start: Callable[..., Started], db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """L-03, E-15: the files first, then the row; the row is never lost while files may be there."""
    (snapshot_id,) = db.execute(SNAPSHOT, ["/nowhere"]).fetchone() or (0,)
    folder = tmp_path / "snapshots" / str(snapshot_id)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_text("rows")
    db.execute("UPDATE holdfast.snapshots SET location = %s", [str(folder)])

    doomed = start(HOLDFAST_CRASH_AT=point)
    until(lambda: db.execute(DUE).rowcount, tmp_path)  # it has registered its loops
    until(lambda: doomed.poll() is not None, tmp_path)

    assert doomed.poll() == -9
    assert db.execute("SELECT id, deleting_since IS NOT NULL FROM holdfast.snapshots").fetchall() == [(snapshot_id, True)]
    assert folder.exists() is is_left

    db.execute(FREE)
    start()
    until(lambda: db.execute("SELECT count(*) FROM holdfast.snapshots").fetchone() == (0,), tmp_path)
    assert not folder.exists()
