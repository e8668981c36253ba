"""The fence reaches the table: a commit of an attempt that was replaced is refused, in every kind of catalog.

The embedded catalog checks the job's row in the transaction of the commit. Others check a tag of the attempt: here
PyIceberg's SQL catalog on a file, which knows nothing of our jobs. A REST catalog is not tested.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from factories import hold, replace
from holdfast import crashpoints
from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim
from holdfast.services.maintenance.engines.actions import Action, ExpireSnapshots, RewriteDataFiles, RewriteManifests
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Fence
from holdfast.services.maintenance.engines.pyiceberg import fence_tag
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.fence_scope import UnfencedWrite
from iceberg_tables import REF, append, arrow, create, end_threads, engine_of, fence_of, fill, paths_on_disk, rows, rows_of

Conn = psycopg.AsyncConnection[Any]
ACTIONS: list[Action] = [RewriteDataFiles(min_input_files=2), RewriteManifests(), ExpireSnapshots(older_than=0)]


def unchecked(claim: Claim) -> Fence:
    """A fence whose own check says yes: only the catalog refuses."""
    return Fence(int(claim.id), str(claim.attempt_id), claim.fence_token, check=lambda: None)


@pytest.fixture
def filed(tmp_path: Path, database: str) -> Iterator[tuple[PyIcebergEngine, Catalog]]:
    """A catalog that cannot see our jobs."""
    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/filed"}
    catalogs = Catalogs({"lake": given}, database_url=database)
    yield engine_of(catalogs, database), catalogs.open_for_writers("lake")
    catalogs.close()
    end_threads()


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
async def test_a_replaced_attempt_cannot_commit(
    engine: PyIcebergEngine, writer: Catalog, conn: Conn, claim: Claim, action: Action
):
    """Nobody else has committed, so the catalog's own comparison would let it through."""
    create(writer)
    expected = fill(writer, 3)
    before = writer.load_table(REF.identifier).metadata_location
    await replace(conn, claim)

    with pytest.raises(ClaimLost):
        engine.run(REF, action, unchecked(claim))

    assert writer.load_table(REF.identifier).metadata_location == before
    assert rows_of(writer) == sorted(expected)


async def test_a_refused_attempt_leaves_no_data_files(engine: PyIcebergEngine, writer: Catalog, conn: Conn, claim: Claim):
    create(writer)
    fill(writer, 3)
    await replace(conn, claim)
    before = {path for path in paths_on_disk(writer) if not path.endswith(".json")}

    with pytest.raises(ClaimLost):
        engine.run(REF, ACTIONS[0], unchecked(claim))

    assert {path for path in paths_on_disk(writer) if not path.endswith(".json")} == before


async def test_the_next_attempt_can_commit(engine: PyIcebergEngine, writer: Catalog, conn: Conn, claim: Claim, database: str):
    create(writer)
    expected = fill(writer, 3)
    second = await replace(conn, claim)

    result = engine.run(REF, ACTIONS[0], fence_of(second, database))

    assert result.after.data_files == 1
    assert rows_of(writer) == sorted(expected)


async def test_a_replacement_waits_for_a_commit_that_is_under_way(
    engine: PyIcebergEngine, catalogs: Catalogs, writer: Catalog, conn: Conn, claim: Claim
):
    """The job's row is locked from the check to the commit: no attempt can begin in between."""
    create(writer)
    fill(writer, 3)
    inside, go = threading.Event(), threading.Event()

    def hold_open(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE iceberg_tables"):
            inside.set()
            assert go.wait(60)

    event.listen(catalogs.open("lake").engine, "after_cursor_execute", hold_open)
    running = threading.Thread(target=lambda: engine.run(REF, ACTIONS[0], unchecked(claim)))
    running.start()
    try:
        assert inside.wait(60)
        async with conn.transaction(), conn.cursor() as cursor:
            await cursor.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                async with conn.transaction():
                    await cursor.execute("SELECT 1 FROM holdfast.jobs WHERE id = %s FOR UPDATE", [claim.id])
    finally:
        go.set()
        running.join()

    second = await replace(conn, claim)

    assert second.fence_token > claim.fence_token
    assert len(writer.load_table(REF.identifier).inspect.data_files()) == 1


def test_the_maintenance_catalog_refuses_writes_without_a_fence(catalogs: Catalogs, writer: Catalog):
    create(writer)

    with pytest.raises(UnfencedWrite, match="without a fence"):
        catalogs.open("lake").load_table(REF.identifier).append(arrow(rows([1])))


def test_a_commit_that_stands_still_is_ended_by_postgres(catalogs: Catalogs):
    with catalogs.open("lake").engine.connect() as connection:
        timeout = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()

    assert timeout == "15s"


# ---------------------------------------------------------------------------------------------------------------------
# Other catalogs: a tag per attempt
# ---------------------------------------------------------------------------------------------------------------------


def test_the_tag_is_asserted_and_removed(filed: tuple[PyIcebergEngine, Catalog], claim: Claim):
    engine, writer = filed
    assert type(writer) is SqlCatalog
    create(writer)
    expected = fill(writer, 3)
    seen: list[set[str]] = []
    crashpoints.arm("maintenance.rewrite.written", lambda: seen.append(set(writer.load_table(REF.identifier).metadata.refs)))
    try:
        engine.run(REF, ACTIONS[0], unchecked(claim))
    finally:
        crashpoints.disarm("maintenance.rewrite.written")

    assert seen == [{"main", f"holdfast-fence-{claim.fence_token}-{claim.attempt_id}"}]
    assert set(writer.load_table(REF.identifier).metadata.refs) == {"main"}
    assert rows_of(writer) == sorted(expected)


@pytest.mark.parametrize("also_append", [False, True], ids=["nobody-else", "and-an-append"])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
async def test_a_commit_without_its_tag_is_refused(
    filed: tuple[PyIcebergEngine, Catalog], conn: Conn, claim: Claim, action: Action, also_append: bool
):
    """Also when the commit is tried again after an append: PyIceberg itself drops the assertion then."""
    engine, writer = filed
    create(writer)
    expected = fill(writer, 3)
    second = unchecked(await replace(conn, claim))
    taken: list[int] = []

    def take_over() -> None:
        if not taken:
            taken.append(1)
            fence_tag.claim(writer, lambda: writer.load_table(REF.identifier), second)
            if also_append:
                expected.extend(append(writer, [99]))

    crashpoints.arm("maintenance.commit.before", take_over)
    try:
        with pytest.raises(ClaimLost):
            engine.run(REF, action, unchecked(claim))
    finally:
        crashpoints.disarm("maintenance.commit.before")

    operations = {snapshot.summary.operation.value for snapshot in writer.load_table(REF.identifier).metadata.snapshots}
    assert operations == {"append"}
    assert len(operations) == 1
    assert rows_of(writer) == sorted(expected)


async def test_an_older_attempt_cannot_take_the_table(filed: tuple[PyIcebergEngine, Catalog], conn: Conn, claim: Claim):
    _, writer = filed
    create(writer)
    fill(writer, 1)
    second = unchecked(await replace(conn, claim))
    fence_tag.claim(writer, lambda: writer.load_table(REF.identifier), second)

    with pytest.raises(ClaimLost):
        fence_tag.claim(writer, lambda: writer.load_table(REF.identifier), unchecked(claim))

    assert fence_tag.tag_name(second) in writer.load_table(REF.identifier).metadata.refs


async def test_of_two_attempts_that_claim_at_once_the_newer_one_wins(
    filed: tuple[PyIcebergEngine, Catalog], conn: Conn, claim: Claim
):
    """K-70: the older one loaded the table before the newer one claimed it, and commits its tag afterwards."""
    _, writer = filed
    create(writer)
    fill(writer, 1)
    second = unchecked(await replace(conn, claim))
    stale = writer.load_table(REF.identifier)
    loads = iter([stale])
    newer = fence_tag.claim(writer, lambda: writer.load_table(REF.identifier), second)
    assert newer is not None

    with pytest.raises(ClaimLost):
        fence_tag.claim(writer, lambda: next(loads, None) or writer.load_table(REF.identifier), unchecked(claim))

    table = writer.load_table(REF.identifier)
    assert not newer.is_gone(table)
    assert fence_tag.tag_name(unchecked(claim)) not in table.metadata.refs


async def test_the_tag_of_a_dead_attempt_is_removed_by_the_next(
    filed: tuple[PyIcebergEngine, Catalog], conn: Conn, claim: Claim
):
    engine, writer = filed
    create(writer)
    fill(writer, 3)
    fence_tag.claim(writer, lambda: writer.load_table(REF.identifier), unchecked(claim))  # and then it died
    second = unchecked(await replace(conn, claim))

    engine.run(REF, ACTIONS[0], second)

    assert set(writer.load_table(REF.identifier).metadata.refs) == {"main"}


async def test_a_job_of_another_table_does_not_matter(engine: PyIcebergEngine, writer: Catalog, conn: Conn, fence: Fence):
    create(writer)
    fill(writer, 2)
    await hold(conn, "maintenance.run")

    assert engine.run(REF, ACTIONS[0], fence).after.data_files == 1
