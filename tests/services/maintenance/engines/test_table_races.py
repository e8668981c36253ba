"""Independent writers change the table during every action, at every point. A row-level oracle says what must be there.

A race is stepped: the crash points of the engine call a writer at a known place. Nothing may be lost, brought back or
duplicated.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from holdfast import crashpoints
from holdfast.services.maintenance.engines.actions import (
    Action,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import Fence, TableConflict
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import (
    REF,
    Row,
    append,
    create,
    delete,
    delete_by_position,
    delete_by_value,
    fill,
    make_old,
    overwrite,
    paths_on_disk,
    rows,
    rows_of,
    upsert,
    without,
)

REWRITE, MANIFESTS, EXPIRE = RewriteDataFiles(min_input_files=2), RewriteManifests(), ExpireSnapshots(older_than=0)
ORPHANS = RemoveOrphanFiles()
EVERYTHING = "HOLDFAST_TEST_EVERYTHING" in os.environ
COMMIT = ("maintenance.commit.before", "maintenance.commit.in_tx", "maintenance.commit.after")
OF_OTHERS = COMMIT if EVERYTHING else COMMIT[:1]  # a rewrite has all of them
POINTS: list[tuple[Action, str]] = [
    *((REWRITE, f"maintenance.rewrite.{point}") for point in ("planned", "writing", "written", "committed")),
    *((REWRITE, point) for point in COMMIT),
    *((MANIFESTS, f"maintenance.manifests.{point}") for point in ("written", "committed")),
    *((MANIFESTS, point) for point in OF_OTHERS),
    *((EXPIRE, f"maintenance.expire.{point}") for point in ("chosen", "committed", "deleting")),
    *((EXPIRE, point) for point in OF_OTHERS),
    *((ORPHANS, f"maintenance.orphans.{point}") for point in ("listed", "deleting")),
]
Write = Callable[[Catalog, list[Row]], list[Row]]


def appends(writer: Catalog, there: list[Row]) -> list[Row]:
    return [*there, *append(writer, [1000, 1001])]


def deletes(writer: Catalog, there: list[Row]) -> list[Row]:
    delete(writer, 5)
    return without(there, 5)


def upserts(writer: Catalog, there: list[Row]) -> list[Row]:
    return [*without(there, 6), upsert(writer, 6, "changed"), upsert(writer, 2000, "new")]


def overwrites(writer: Catalog, there: list[Row]) -> list[Row]:
    new = rows(range(8), text="again")
    overwrite(writer, new, "id < 8")
    return [*(row for row in there if row[0] >= 8), *new]


def deletes_by_position(writer: Catalog, there: list[Row]) -> list[Row]:
    delete_by_position(writer, [7, 14])
    return without(there, 7, 14)


def deletes_by_position_then_appends(writer: Catalog, there: list[Row]) -> list[Row]:
    """PyIceberg 0.12 lets a compaction commit here, and row 9 comes back."""
    delete_by_position(writer, [9])
    return appends(writer, without(there, 9))


def moves_a_branch_back(writer: Catalog, there: list[Row]) -> list[Row]:
    """An append that is rolled back again: its rows must not stay."""
    before = writer.load_table(REF.identifier).current_snapshot().snapshot_id
    append(writer, [3000])
    writer.load_table(REF.identifier).manage_snapshots().set_current_snapshot(before).commit()
    return there


WRITES: list[Write] = [
    appends,
    deletes,
    upserts,
    overwrites,
    deletes_by_position,
    deletes_by_position_then_appends,
    moves_a_branch_back,
]


@contextmanager
def at(point: str, act: Callable[[], None]) -> Iterator[list[int]]:
    """Call `act` the first time that a point is reached. The list has one item if it was."""
    reached: list[int] = []

    def once() -> None:
        if not reached:
            reached.append(1)
            act()

    crashpoints.arm(point, once)
    try:
        yield reached
    finally:
        crashpoints.disarm(point)


def plant_orphan(writer: Catalog) -> None:
    orphan = Path(writer.load_table(REF.identifier).location().removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    make_old([str(orphan)])


@pytest.mark.parametrize(("action", "point"), POINTS, ids=[f"{action.name}-{point}" for action, point in POINTS])
def test_no_row_is_lost_or_brought_back(engine: PyIcebergEngine, writer: Catalog, fence: Fence, action: Action, point: str):
    """Writers at this point of the action, one after the other: one of them, or every one with HOLDFAST_TEST_EVERYTHING."""
    at_this = POINTS.index((action, point))
    some = [WRITES[at_this % len(WRITES)]]
    for write in WRITES if EVERYTHING else some:
        create(writer)
        there = fill(writer, 4)
        plant_orphan(writer)

        def change(write: Write = write) -> None:
            nonlocal there
            there = write(writer, there)

        with at(point, change) as reached:
            engine.run(REF, action, fence)

        assert reached, f"{action.name} did not reach {point}"
        assert rows_of(writer) == sorted(there), f"{write.__name__} at {point} of {action.name}"
        writer.drop_table(REF.identifier)


def test_a_position_delete_and_an_append_during_a_compaction_are_rewritten_again(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence
):
    """The defect of PyIceberg 0.12: the group is planned again, and the second try applies the delete."""
    create(writer)
    there = fill(writer, 4)

    def change() -> None:
        delete_by_position(writer, [9])
        append(writer, [1000])

    with at("maintenance.rewrite.written", change):
        result = engine.run(REF, REWRITE, fence)

    assert rows_of(writer) == sorted([*without(there, 9), (1000, 0, "n1000")])
    assert result.details["deleted_rows_applied"] == 1
    assert result.after.delete_files == 0
    assert result.after.data_files == 1


def test_an_equality_delete_during_a_compaction_is_not_dropped(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """The commit is refused; planned again, the delete is applied, also to none of the rows that came after it."""
    create(writer)
    there = fill(writer, 4)

    def change() -> None:
        delete_by_value(writer, [9])
        append(writer, [9, 1000])

    with at("maintenance.rewrite.written", change):
        result = engine.run(REF, REWRITE, fence)

    assert result.details["deleted_rows_applied"] == 1
    assert rows_of(writer) == sorted([*without(there, 9), (9, 0, "n9"), (1000, 0, "n1000")])


def test_a_tag_that_is_created_during_an_expiry_keeps_its_snapshot(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """PyIceberg's own expiry drops the tag and its snapshot silently."""
    create(writer)
    fill(writer, 3)
    table = writer.load_table(REF.identifier)
    first = table.metadata.snapshots[0].snapshot_id
    rows_then = sorted(table.scan(snapshot_id=first).to_arrow()["id"].to_pylist())

    with at("maintenance.commit.before", lambda: table.manage_snapshots().create_tag(first, "keep").commit()):
        engine.run(REF, EXPIRE, fence)

    table = writer.load_table(REF.identifier)
    assert table.metadata.refs["keep"].snapshot_id == first
    assert sorted(table.scan(snapshot_id=first).to_arrow()["id"].to_pylist()) == rows_then


def test_a_rollback_during_a_compaction_is_a_conflict(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """After the rollback some of the old files are not live: the compaction must not bring their rows back."""
    create(writer)
    kept = fill(writer, 2)
    second = writer.load_table(REF.identifier).current_snapshot().snapshot_id
    fill(writer, 2, start=100)

    with at(
        "maintenance.rewrite.written",
        lambda: writer.load_table(REF.identifier).manage_snapshots().set_current_snapshot(second).commit(),
    ):
        engine.run(REF, REWRITE, fence)

    assert rows_of(writer) == sorted(kept)


def test_a_delete_file_that_is_removed_during_a_compaction_is_a_conflict(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence
):
    """A rollback to the time before a delete: the row is there again, and must not be lost."""
    create(writer)
    there = fill(writer, 3)
    before = writer.load_table(REF.identifier).current_snapshot().snapshot_id
    delete_by_position(writer, [4])

    with at(
        "maintenance.rewrite.written",
        lambda: writer.load_table(REF.identifier).manage_snapshots().set_current_snapshot(before).commit(),
    ):
        engine.run(REF, REWRITE, fence)

    assert rows_of(writer) == sorted(there)


def test_a_group_that_always_conflicts_fails_and_leaves_no_files(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    there = fill(writer, 6)
    number = iter(range(100))

    def always() -> None:
        nonlocal there
        gone = next(number)
        delete_by_position(writer, [gone])
        there = without(there, gone)

    crashpoints.arm("maintenance.rewrite.written", always)
    try:
        with pytest.raises(TableConflict, match="other writers changed all 1 groups"):
            engine.run(REF, REWRITE, fence)
    finally:
        crashpoints.disarm("maintenance.rewrite.written")

    assert rows_of(writer) == sorted(there)
    live = set(writer.load_table(REF.identifier).inspect.all_files()["file_path"].to_pylist())
    on_disk = {path for path in paths_on_disk(writer) if path.endswith(".parquet")}
    assert on_disk == {path.removeprefix("file://") for path in live}


@pytest.mark.parametrize("seed", range(20 if EVERYTHING else 1))
def test_a_random_writer_races_with_all_actions(engine: PyIcebergEngine, writer: Catalog, fence: Fence, seed: int):
    """One writer commits what it likes while all actions run again and again. Its own commits may fail; then nothing
    changed."""
    chance = random.Random(seed)
    create(writer)
    there = fill(writer, 4)
    failures: list[BaseException] = []
    done: list[str] = []  # what the writer did, for the message of a failure

    def write() -> None:
        nonlocal there
        new = iter(range(10_000, 20_000))
        for _ in range(12):
            some = chance.choice(there)[0]
            kind = chance.choice(["append", "delete", "upsert", "positions", "overwrite"])
            try:
                if kind == "append":
                    there = [*there, *append(writer, [next(new)])]
                elif kind == "delete":
                    delete(writer, some)
                    there = without(there, some)
                elif kind == "upsert":
                    there = [*without(there, some), upsert(writer, some, f"u{some}")]
                elif kind == "positions":
                    delete_by_position(writer, [some])
                    there = without(there, some)
                else:
                    changed = rows([some], text="o")
                    overwrite(writer, changed, f"id = {some}")
                    there = [*without(there, some), *changed]
            except (CommitFailedException, ValidationException, FileNotFoundError) as refused:
                done.append(f"{kind} {some}: {refused}")
            except BaseException as error:
                failures.append(error)
                raise
            else:
                done.append(f"{kind} {some}")

    thread = threading.Thread(target=write)
    thread.start()
    rounds = 0
    try:
        while thread.is_alive() or not rounds:
            for action in (REWRITE, MANIFESTS, ExpireSnapshots(older_than=0, retain_last=5), ORPHANS):
                with suppress(TableConflict):
                    engine.run(REF, action, fence)
            rounds += 1
    finally:
        thread.join()

    assert not failures
    assert rows_of(writer) == sorted(there), done
