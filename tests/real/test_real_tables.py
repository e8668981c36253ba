"""Real Spark 3.5, real Trino and PyIceberg on one catalog: every action by each, then every row read by all three.

The catalog is Iceberg's own REST server, or the embedded one in our Postgres, which Java programs use as a JDBC catalog.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from factories import hold
from holdfast import crashpoints
from holdfast.errors import ClaimLost
from holdfast.services.maintenance.engines.actions import (
    Action,
    ComputeStatistics,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import Engine, Fence, TableConflict, TableNotFound, TableRef, TableRefused
from holdfast.services.maintenance.engines.pyiceberg import fence_tag
from holdfast.services.maintenance.engines.pyiceberg.fence_tag import token_of
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised
from iceberg_tables import (
    Row,
    append,
    create,
    delete,
    delete_by_position,
    delete_by_value,
    end_threads,
    fence_of,
    fill,
    make_old,
    overwrite,
    rows,
    upsert,
    without,
)

LAKES, ENGINES = ("rest", "embedded"), ("pyiceberg", "spark", "trino")
WAYS = (*ENGINES, "spark_thrift")  # Spark is reached over Connect and over Thrift
REWRITE, MANIFESTS, EXPIRE = RewriteDataFiles(), RewriteManifests(), ExpireSnapshots(older_than=0)
ORPHANS, STATISTICS = RemoveOrphanFiles(), ComputeStatistics()
MERGE_ON_READ = {f"write.{name}.mode": "merge-on-read" for name in ("delete", "update", "merge")}


@pytest.fixture(autouse=True)
def threads_of_pyiceberg() -> Iterator[None]:
    """PyIceberg keeps a pool of threads."""
    yield
    end_threads()


@pytest.fixture
def table(lake: str) -> TableRef:
    """A name that no other test has."""
    return TableRef(lake, "sales", f"t{uuid.uuid4().hex[:8]}")


@pytest.fixture
def writer(writers: dict[str, Catalog], lake: str) -> Catalog:
    return writers[lake]


@pytest.fixture
def fence(lakes: dict[str, dict[str, str]], lake: str) -> Fence:
    """An attempt that is never replaced. In the embedded catalog it holds a job."""
    return new_fence(lakes, lake)


def new_fence(lakes: dict[str, dict[str, str]], lake: str, token: int = 1, check: Callable[[], None] = lambda: None) -> Fence:
    if lake == "embedded":
        return embedded_fence(lakes[""]["url"])
    return Fence(1, str(uuid.uuid4()), token, check)


def embedded_fence(url: str) -> Fence:
    """An attempt that holds a job in our database."""

    async def claim() -> Any:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            return await hold(conn)  # of another kind: no worker of these tests takes it

    return fence_of(asyncio.run(claim()), url)


# ---------------------------------------------------------------------------------------------------------------------
# Each action by each engine
# ---------------------------------------------------------------------------------------------------------------------


def rows_by(engine: Engine, writer: Catalog, table: TableRef) -> list[Row]:
    """All rows, as this engine reads them."""
    if engine.name == "pyiceberg":
        found = writer.load_table(table.identifier).scan().to_arrow().select(["id", "part", "text"])
        return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
    theirs = name_in(engine, table)
    return sorted(tuple(row) for row in engine.query(f"SELECT id, part, text FROM {theirs}", "holdfast-look"))  # type: ignore[attr-defined]


def name_in(engine: Engine, table: TableRef) -> str:
    """The table in the SQL of this engine."""
    catalog: str = engine._theirs(table.catalog)  # type: ignore[attr-defined]
    return f"{catalog}.{table.namespace}.{table.name}"


def all_agree(engines: dict[str, Engine], writer: Catalog, table: TableRef, expected: list[Row], when: str) -> None:
    for engine in engines.values():
        assert rows_by(engine, writer, table) == sorted(expected), f"{engine.name} reads other rows {when}"


def plant_orphan(writer: Catalog, table: TableRef) -> Path:
    """An old file of nobody."""
    folder = Path(normalised(writer.load_table(table.identifier).location()))
    orphan = folder / "data" / "orphan.parquet"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x")
    make_old([str(orphan)])
    return orphan


@pytest.mark.parametrize("lake", LAKES)
@pytest.mark.parametrize("name", WAYS)
def test_every_action_of_an_engine_is_read_by_the_others(
    lake_engines: dict[str, Engine], writer: Catalog, table: TableRef, fence: Fence, name: str
):
    """Compaction applies delete files, expiry deletes files, an orphan goes, and every row stays."""
    engine = lake_engines[name]
    engine.begin(fence.tag)
    create(writer, table, partitioned=True, **MERGE_ON_READ)
    there = fill(writer, 6, ref=table, parts=2)
    delete_by_position(writer, [3, 8], ref=table)
    there, orphan = without(there, 3, 8), plant_orphan(writer, table)
    before = engine.stats(table)

    planned = engine.plan(table, REWRITE)
    rewritten = engine.run(table, REWRITE, fence)
    all_agree(lake_engines, writer, table, there, "after rewrite_data_files")
    manifests = engine.run(table, MANIFESTS, fence)
    expired = engine.run(table, EXPIRE, fence)
    all_agree(lake_engines, writer, table, there, "after expire_snapshots")
    engine.run(table, ORPHANS, fence)
    if engine.supports(STATISTICS.name):
        engine.run(table, STATISTICS, fence)
    all_agree(lake_engines, writer, table, there, "after all actions")
    health = engine.health_inputs(table)
    engine.end(fence.tag)

    assert (before.data_files, before.delete_files, before.snapshots) == (12, 2, 7)
    assert (planned.details["rewritten_files"], planned.after.data_files) == (12, 2)  # type: ignore[union-attr]
    assert rewritten.after is not None
    assert (rewritten.after.data_files, rewritten.after.delete_files) == (2, 0)
    assert manifests.after is not None
    assert manifests.after.manifests <= min(3, rewritten.after.manifests)
    assert expired.after is not None
    assert expired.after.snapshots == 1
    assert not orphan.exists()
    assert (health.partitions, health.small_files, health.files_with_deletes, health.format_version) == (2, 2, 0, 2)
    assert not [ref for ref in writer.load_table(table.identifier).metadata.refs if token_of(ref) is not None]


@pytest.mark.parametrize("lake", LAKES[:1])
def test_what_is_wrong_is_named_and_not_retried(
    lake_engines: dict[str, Engine], writer: Catalog, table: TableRef, fence: Fence
):
    """A table that is gone, and a filter that is not one."""
    create(writer, table)
    fill(writer, 2, ref=table)
    gone = TableRef(table.catalog, table.namespace, "gone")

    for engine in lake_engines.values():
        assert table in set(engine.list_tables())
        with pytest.raises(TableNotFound, match="there is no table rest.sales.gone"):
            engine.stats(gone)
        engine.begin(fence.tag)
        with pytest.raises(TableRefused):
            engine.run(table, RewriteDataFiles(where="nothing = = 1"), fence)
        engine.end(fence.tag)


@pytest.mark.parametrize("lake", LAKES[:1])
@pytest.mark.parametrize("name", ENGINES)
def test_equality_deletes_of_another_writer_are_applied_or_refused(
    lake_engines: dict[str, Engine], writer: Catalog, table: TableRef, fence: Fence, name: str
):
    """Deletes by value, as Flink writes them: applied by every engine, and never dropped. Also after the manifests with them
    were rewritten by PyIceberg."""
    create(writer, table)
    there = fill(writer, 5, ref=table)
    delete_by_value(writer, [4, 17], ref=table)
    delete_by_value(writer, [30], ref=table)
    append(writer, [4], ref=table)  # after the delete: it stays
    there = [*without(there, 4, 17, 30), (4, 0, "n4")]
    manifests = lake_engines["pyiceberg"].run(table, MANIFESTS, fence)
    assert manifests.details["entries"] == 8
    assert rows_by(lake_engines["spark"], writer, table) == sorted(there)
    assert rows_by(lake_engines["trino"], writer, table) == sorted(there)

    after = lake_engines[name].run(table, REWRITE, fence).after

    assert after is not None
    assert after.data_files == 1
    assert rows_by(lake_engines["spark"], writer, table) == sorted(there)
    assert rows_by(lake_engines["trino"], writer, table) == sorted(there)


# ---------------------------------------------------------------------------------------------------------------------
# Independent writers
# ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def at(point: str, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` the first time that a point is reached."""
    reached: list[int] = []

    def once() -> None:
        if not reached:
            reached.append(1)
            act()

    crashpoints.arm(point, once)
    try:
        yield
    finally:
        crashpoints.disarm(point)
    assert reached, f"{point} was not reached"


@pytest.mark.parametrize("lake", LAKES)
@pytest.mark.parametrize("other", ENGINES[1:])
def test_a_delete_and_an_insert_of_another_engine_during_a_compaction(
    lake_engines: dict[str, Engine], writer: Catalog, table: TableRef, fence: Fence, other: str
):
    """A merge-on-read delete that is followed by another commit: with PyIceberg's own validation the row would come back."""
    create(writer, table, **MERGE_ON_READ)
    there = fill(writer, 5, ref=table)
    sql, name = lake_engines[other], name_in(lake_engines[other], table)

    def change() -> None:
        sql.query(f"DELETE FROM {name} WHERE id = 9", "holdfast-look")  # type: ignore[attr-defined]
        sql.query(f"INSERT INTO {name} VALUES (1000, 0, 'n1000')", "holdfast-look")  # type: ignore[attr-defined]

    with at("maintenance.rewrite.written", change):
        result = lake_engines["pyiceberg"].run(table, REWRITE, fence)

    all_agree(lake_engines, writer, table, [*without(there, 9), (1000, 0, "n1000")], f"after {other} wrote")
    assert result.details["deleted_rows_applied"] == 1


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported:UserWarning")  # PyIceberg's, about its own deletes
@pytest.mark.parametrize("lake", LAKES[:1])
@pytest.mark.parametrize("name", WAYS)
def test_a_writer_races_with_every_action_of_an_engine(
    lake_engines: dict[str, Engine], writer: Catalog, table: TableRef, fence: Fence, name: str
):
    """The writer appends, overwrites, deletes, upserts and writes delete files while the engine does everything repeatedly.

    A commit of either side may be refused; then it changed nothing.
    """
    create(writer, table, **MERGE_ON_READ)
    there = fill(writer, 5, ref=table)
    chance, failures = random.Random(5), []

    def write() -> None:
        nonlocal there
        for number in range(10_000, 10_010):
            some = chance.choice(there)[0]
            try:
                match chance.choice(["append", "delete", "upsert", "overwrite", "positions"]):
                    case "append":
                        there = [*there, *append(writer, [number], ref=table)]
                    case "delete":
                        delete(writer, some, ref=table)
                        there = without(there, some)
                    case "upsert":
                        there = [*without(there, some), upsert(writer, some, f"u{some}", ref=table)]
                    case "overwrite":
                        new = rows([some], text="o")
                        overwrite(writer, new, f"id = {some}", ref=table)
                        there = [*without(there, some), *new]
                    case "positions":
                        delete_by_position(writer, [some], ref=table)
                        there = without(there, some)
            except (CommitFailedException, ValidationException, FileNotFoundError):
                continue
            except BaseException as error:
                failures.append(error)
                raise

    thread, engine, rounds = threading.Thread(target=write), lake_engines[name], 0
    engine.begin(fence.tag)
    thread.start()
    while thread.is_alive() or not rounds:
        for action in (REWRITE, MANIFESTS, EXPIRE, ORPHANS):
            with contextlib.suppress(TableConflict):
                engine.run(table, action, fence)
        rounds += 1
    thread.join()
    engine.end(fence.tag)

    assert not failures
    all_agree(lake_engines, writer, table, there, f"after a race with {name}")


# ---------------------------------------------------------------------------------------------------------------------
# The fence in the REST catalog
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lake", LAKES[:1])
@pytest.mark.parametrize("also_append", [False, True], ids=["nobody-else", "and-an-append"])
@pytest.mark.parametrize("action", [REWRITE, MANIFESTS, EXPIRE], ids=lambda action: action.name)
def test_the_server_refuses_the_commit_of_a_replaced_attempt(
    lake_engines: dict[str, Engine], writer: Catalog, table: TableRef, action: Action, also_append: bool
):
    """The first attempt stands before its commit. The second takes the table and removes the first one's tag."""
    create(writer, table)
    there = fill(writer, 6, ref=table)
    first, second = Fence(1, str(uuid.uuid4()), 1, lambda: None), Fence(1, str(uuid.uuid4()), 2, lambda: None)

    def take_over() -> None:
        fence_tag.claim(writer, lambda: writer.load_table(table.identifier), second)
        if also_append:
            there.extend(append(writer, [99], ref=table))

    with at("maintenance.commit.before", take_over), pytest.raises(ClaimLost):
        lake_engines["pyiceberg"].run(table, action, first)

    snapshots = writer.load_table(table.identifier).metadata.snapshots
    assert {snapshot.summary.operation.value for snapshot in snapshots if snapshot.summary} == {"append"}
    assert len(snapshots) == 6 + also_append, "nothing was expired"

    done = lake_engines["pyiceberg"].run(table, REWRITE, second)

    head = writer.load_table(table.identifier).current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary["holdfast.fence-token"] == "2"
    assert done.after is not None
    assert done.after.data_files == 1
    all_agree(lake_engines, writer, table, there, "after the second attempt")
