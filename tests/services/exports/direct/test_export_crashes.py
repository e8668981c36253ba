"""Exports whose worker is killed for real: another finishes them, no row is there twice, and nothing else stays."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

import programs
import workers
from factories import add, job, rows, value
from holdfast.jobs.effects import clean
from holdfast.jobs.rescue import rescue
from holdfast.services.exports.export.run import KIND
from holdfast.worker.kinds import cleaners
from programs import Started

pytestmark = pytest.mark.processes

PATIENCE = 180.0
ROWS = 300_000
SQL = f"SELECT i AS id, 'name ' || i AS name FROM range({ROWS}) t(i)"
SILENCE = "UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'"
HAS_BEGUN = "SELECT begun_at >= claimed_at FROM holdfast.jobs WHERE id = %s"
Start = Callable[..., Started]


@pytest.fixture
def start(database: str, folder: Path) -> Iterator[Start]:
    """Starts `holdfast worker run` in a process group of its own, which is killed after the test."""
    started: list[Started] = []

    def run(*options: str, url: str = database, **environment: str) -> Started:
        words = ["worker", "run", "--import", "holdfast.services.exports.kinds", "--dsn", url, *options]
        with (folder / "log").open("ab") as log:
            worker = programs.start(*words, env={**os.environ, **environment}, folder=folder, out=log, err=log, session=True)
        started.append(worker)
        return worker

    yield run
    for worker in started:
        worker.kill_group()


def until(reached: Callable[[], Any], what: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, f"{what} never happened; the workers said:\n{log.read_text()[-3000:]}"
        time.sleep(0.02)


async def everything_is_there_once(conn: psycopg.AsyncConnection[Any], job_id: int, to: Path) -> dict[str, Any]:
    """The job has completed, and what its manifest names holds every row once; the manifest."""
    done = await job(conn, job_id)
    assert done.state == "completed"
    manifest: dict[str, Any] = json.loads((to / "_manifest.json").read_text())
    assert manifest == done.result
    table = pq.read_table([to / file["path"] for file in manifest["files"]], partitioning=None)
    ids = table.column("id").to_pylist()
    assert len(ids) == manifest["rows"] == len(set(ids))
    return manifest


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


async def nothing_is_left(conn: psycopg.AsyncConnection[Any], to: Path, manifest: dict[str, Any]) -> None:
    """The ledger removes what the manifest does not name."""
    await clean(conn, cleaners())
    assert {state for (state,) in await rows(conn, "SELECT state FROM holdfast.effects")} <= {"kept", "gone"}
    named = {to / file["path"] for file in manifest["files"]} | {to / "_manifest.json"}
    assert files_in(to) == named


POINTS = {
    "export.streaming:2": "a later attempt",
    "export.part_put": "a later attempt",
    "export.uploaded": "a later attempt",
    "publish.in_tx_before": "a later attempt",
    "export.published": "the dead attempt",  # its manifest was there: it is taken over, and nothing is written twice
    "publish.in_tx_after": "the dead attempt",
    "complete.after_commit_before_ack": "the dead attempt",
}
SOME = ("export.part_put", "export.published")  # one of each outcome


@pytest.mark.parametrize("point", [*SOME, *(pytest.param(one, marks=pytest.mark.more) for one in POINTS if one not in SOME)])
async def test_an_executor_dies_at_any_point_and_every_row_is_there_once(
    conn: psycopg.AsyncConnection[Any], start: Start, folder: Path, point: str
):
    to = folder / "out"
    job_id = await add(conn, KIND, payload={"sql": SQL, "to": str(to)})

    worker = start("--drain", HOLDFAST_CRASH_AT=point)
    until(lambda: worker.poll() is not None, "the end of the worker", folder / "log")

    assert worker.returncode == 0
    assert '"executor_died"' in (folder / "log").read_text()
    manifest = await everything_is_there_once(conn, job_id, to)
    attempts = [str(attempt) for (attempt,) in await rows(conn, "SELECT DISTINCT attempt_id FROM holdfast.effects")]
    if POINTS[point] == "a later attempt":
        assert len(attempts) == 2, "the dead attempt had planned its prefix"
        assert len([*to.glob("attempt-*")]) >= 1
    else:
        assert [path.name for path in to.glob("attempt-*")] == [f"attempt-{manifest['attempt_id']}"]
    await nothing_is_left(conn, to, manifest)


@pytest.mark.more  # the crash points of an export are in this file, the loss of a machine in tests/faults
async def test_a_pod_that_is_gone_half_way_is_followed_by_another(
    conn: psycopg.AsyncConnection[Any], database: str, start: Start, folder: Path
):
    to, rows_wanted = folder / "out", 6_000_000
    sql = f"SELECT i AS id, md5(i::varchar) AS name FROM range({rows_wanted}) t(i)"
    job_id = await add(conn, KIND, payload={"sql": sql, "to": str(to)})

    first = start(url=workers.doomed(database), HOLDFAST_LEASE_SECONDS="60", HOLDFAST_BEAT_SECONDS="0.1")
    await workers.until(lambda: value(conn, HAS_BEGUN, job_id))  # a death before the first beat would not count
    until(lambda: any(file.stat().st_size for file in to.rglob(".part*")), "a file that grows", folder / "log")
    first.kill_group()
    dead = {path.name for path in to.glob("attempt-*")}
    assert not (to / "_manifest.json").exists()
    await workers.until_gone(conn)
    await conn.execute(SILENCE)  # time is moved by moving rows
    assert await rescue(conn) == [job_id]
    second = start("--drain")
    until(lambda: second.poll() is not None, "the end of the second worker", folder / "log")

    manifest = await everything_is_there_once(conn, job_id, to)
    assert manifest["rows"] == rows_wanted
    assert len(dead) == 1
    assert f"attempt-{manifest['attempt_id']}" not in dead
    await nothing_is_left(conn, to, manifest)
    assert await value(conn, "SELECT crashes FROM holdfast.jobs WHERE id = %s", job_id) == 1
