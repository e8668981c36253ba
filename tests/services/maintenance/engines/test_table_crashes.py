"""Attempts that are killed at every crash point, and attempts that are frozen and come back after they were replaced.

Each attempt is a process. After a kill, another attempt runs the same action: the rows are as before, and nothing is left
that only removing orphan files could find, except where this says so.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import Catalog

from factories import replace
from holdfast.jobs.model import Claim
from holdfast.services.maintenance.engines.actions import parse_actions
from holdfast.services.maintenance.engines.crash_points import CRASH_POINTS
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.references import References
from iceberg_attempts import attempt, gate
from iceberg_tables import (
    REF,
    create,
    delete_by_position,
    fence_of,
    fill,
    make_old,
    overwrite,
    paths_on_disk,
    rows,
    rows_of,
    without,
)

Conn = psycopg.AsyncConnection[Any]
PATIENCE = 120.0
REWRITE: dict[str, Any] = {"action": "rewrite_data_files", "min_input_files": 2}
MANIFESTS: dict[str, Any] = {"action": "rewrite_manifests"}
EXPIRE: dict[str, Any] = {"action": "expire_snapshots", "older_than": 0}
ORPHANS: dict[str, Any] = {"action": "remove_orphan_files"}
BY_AREA = {"rewrite": REWRITE, "manifests": MANIFESTS, "expire": EXPIRE, "orphans": ORPHANS, "commit": REWRITE}
# One point of every action, and a commit in and after its transaction; with HOLDFAST_TEST_EVERYTHING every point.
EVERYTHING = "HOLDFAST_TEST_EVERYTHING" in os.environ
SOME = ("rewrite.written", "commit.in_tx", "commit.after", "manifests.written", "expire.deleting", "orphans.deleting")
POINTS = list(CRASH_POINTS) if EVERYTHING else [f"maintenance.{point}" for point in SOME]
KILLS = [(BY_AREA[point.split(".")[1]], point) for point in POINTS]
if EVERYTHING:
    KILLS += [(EXPIRE, point) for point in CRASH_POINTS if point.startswith("maintenance.commit.")]
    KILLS += [(MANIFESTS, "maintenance.commit.in_tx")]
FROZEN = [("maintenance.rewrite.written", "second-commits"), ("maintenance.commit.before", "second-is-slow")]
if EVERYTHING:
    FROZEN += [("maintenance.rewrite.written", "second-is-slow"), ("maintenance.commit.before", "second-commits")]


def prepare(writer: Catalog) -> list[Any]:
    """A table with something to do for every action."""
    create(writer)
    there = fill(writer, 4)
    overwrite(writer, rows(range(5), text="again"), "id < 5")
    there = [*(row for row in there if row[0] >= 5), *rows(range(5), text="again")]
    delete_by_position(writer, [17])
    orphan = Path(writer.load_table(REF.identifier).location().removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    make_old([str(orphan)])
    return without(there, 17)


def unreferenced(writer: Catalog) -> set[str]:
    table = writer.load_table(REF.identifier)
    used = References.of(table)
    return {path for path in paths_on_disk(writer) if path not in used}


@pytest.mark.more
@pytest.mark.parametrize(("action", "point"), KILLS, ids=[f"{action['action']}-{point}" for action, point in KILLS])
async def test_a_killed_attempt_is_repeated_by_another(
    writer: Catalog,
    engine: PyIcebergEngine,
    conn: Conn,
    claim: Claim,
    database: str,
    tmp_path: Path,
    start: Callable[..., Any],
    action: dict[str, Any],
    point: str,
):
    expected = prepare(writer)
    died = start(attempt, database, str(tmp_path), claim, action, point)
    died.join(PATIENCE)
    assert died.exitcode == -signal.SIGKILL, f"{action['action']} did not reach {point}"
    assert rows_of(writer) == expected
    second = await replace(conn, claim)

    result = engine.run(REF, parse_actions([action])[0], fence_of(second, database))

    assert rows_of(writer) == expected
    left = unreferenced(writer)
    if action is EXPIRE:
        assert {path for path in left if path.endswith(".parquet")} <= {
            path for path in left if path.endswith("orphan.parquet")
        }
        assert not {path for path in left if path.endswith(".avro")}
        assert result.after.snapshots == 1
    if action is REWRITE:
        assert (result.after.data_files, result.after.delete_files) == (1, 0)
    if action is MANIFESTS:
        assert result.after.manifests == 2  # of data files and of delete files
    if action is ORPHANS:
        assert not {path for path in left if path.endswith("orphan.parquet")}
    make_old(paths_on_disk(writer))
    engine.run(REF, parse_actions([ORPHANS])[0], fence_of(second, database))
    assert unreferenced(writer) == set()
    assert rows_of(writer) == expected


@pytest.mark.more
@pytest.mark.parametrize(("point", "then"), FROZEN)
async def test_a_frozen_attempt_that_comes_back_is_refused(
    writer: Catalog,
    engine: PyIcebergEngine,
    conn: Conn,
    claim: Claim,
    database: str,
    tmp_path: Path,
    start: Callable[..., Any],
    point: str,
    then: str,
):
    """SIGSTOP the first attempt, run the second, SIGCONT the first. Its commit is REFUSED, whether the second one has
    committed already (the files are gone) or not (only the fence refuses)."""
    expected = prepare(writer)
    with gate(tmp_path) as let_go:
        first = start(attempt, database, str(tmp_path), claim, REWRITE, "", point)
        wait_for(tmp_path / "reached", first)
        os.kill(first.pid, signal.SIGSTOP)
        second = await replace(conn, claim)
        if then == "second-commits":
            engine.run(REF, parse_actions([REWRITE])[0], fence_of(second, database))
        before = writer.load_table(REF.identifier).metadata_location

        let_go()
        os.kill(first.pid, signal.SIGCONT)
        wait_for(tmp_path / "outcome", first)

    assert (tmp_path / "outcome").read_text() == "refused"
    assert writer.load_table(REF.identifier).metadata_location == before
    assert rows_of(writer) == expected


async def test_an_attempt_that_freezes_inside_its_commit_is_harmless(
    writer: Catalog, conn: Conn, claim: Claim, database: str, tmp_path: Path, start: Callable[..., Any]
):
    """It holds the job's row, so that no second attempt begins before its transaction ends. Postgres ends it; here the test
    does the same at once. When the attempt comes back, its commit fails, and so does the attempt: HARMLESS."""
    expected = prepare(writer)
    with gate(tmp_path) as let_go:
        first = start(attempt, database, str(tmp_path), claim, REWRITE, "", "maintenance.commit.in_tx")
        wait_for(tmp_path / "reached", first)
        os.kill(first.pid, signal.SIGSTOP)
        before = writer.load_table(REF.identifier).metadata_location
        ended = await conn.execute(
            """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE state = 'idle in transaction' AND datname = current_database() AND query LIKE '%FOR SHARE%'"""
        )
        assert await ended.fetchone() == (1,)
        await replace(conn, claim)

        let_go()
        os.kill(first.pid, signal.SIGCONT)
        wait_for(tmp_path / "outcome", first)

    assert (tmp_path / "outcome").read_text() != "done"
    assert writer.load_table(REF.identifier).metadata_location == before
    assert rows_of(writer) == expected


def wait_for(path: Path, process: Any) -> None:
    """Until the file is there; the process must live until then."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.is_alive() or path.exists(), f"the attempt ended with {process.exitcode}"
        assert time.monotonic() < deadline, f"there is no {path.name}"
        time.sleep(0.01)
