"""remove_orphan_files of the embedded engine: what is an orphan, the age guard, and what is never deleted."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from holdfast.services.maintenance.engines.actions import (
    ActionsInvalid,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    parse_actions,
)
from holdfast.services.maintenance.engines.interface import Fence, TableRefused
from holdfast.services.maintenance.engines.pyiceberg import list_files, remove_orphan_files
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import REF, arrow, create, delete_by_position, fill, make_old, paths_on_disk, rows, rows_of

WEEK = RemoveOrphanFiles()


def plant(writer: Catalog, name: str = "data/orphan.parquet", *, old: bool = True) -> Path:
    path = Path(writer.load_table(REF.identifier).location().removeprefix("file://")) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    if old:
        make_old([str(path)])
    return path


def test_old_orphans_go_and_everything_else_stays(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True)
    expected = fill(writer, 4, parts=2)
    delete_by_position(writer, [3])
    make_old(paths_on_disk(writer))
    before = paths_on_disk(writer)
    orphans = [plant(writer), plant(writer, "data/part=1/x.parquet"), plant(writer, "metadata/snap-1.avro")]

    result = engine.run(REF, WEEK, fence)

    assert paths_on_disk(writer) == before
    assert rows_of(writer) == sorted(row for row in expected if row[0] != 3)
    assert result.details["deleted_files"] == len(orphans)
    assert result.details["deleted_bytes"] == len(orphans) * len(b"left behind")


def test_young_files_stay(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 2)
    young = plant(writer, old=False)

    result = engine.run(REF, WEEK, fence)

    assert young.exists()
    assert result.details["orphan_files"] == 0


def test_a_dry_run_counts_and_deletes_nothing(engine: PyIcebergEngine, writer: Catalog):
    create(writer)
    fill(writer, 2)
    orphan = plant(writer)

    planned = engine.plan(REF, WEEK)

    assert orphan.exists()
    assert (planned.details["orphan_files"], planned.details["deleted_files"]) == (1, 0)
    assert planned.details["examples"] == [str(orphan)]


@pytest.mark.parametrize("spelling", ["file:", "file:///", ""])
def test_every_spelling_of_a_location_is_the_same_file(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence, tmp_path: Path, spelling: str
):
    """Spark writes file:/x where PyIceberg writes file:///x: compared as they are, every file would be an orphan."""
    path = str(tmp_path / "lake" / "elsewhere")
    create(writer, location=spelling + (path.removeprefix("/") if spelling.endswith("/") else path))
    expected = fill(writer, 3)
    files = {str(found) for found in Path(path).rglob("*") if found.is_file()}
    make_old(files)
    orphan = Path(path) / "data" / "orphan.parquet"
    orphan.write_bytes(b"left behind")
    make_old([str(orphan)])

    result = engine.run(REF, WEEK, fence)

    assert result.details["orphan_files"] == 1
    assert not orphan.exists()
    assert rows_of(writer) == sorted(expected)


def test_hidden_files_are_left_to_their_tools(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 1)
    hidden = [plant(writer, "data/_temporary/x.parquet"), plant(writer, "data/.x.parquet.crc")]

    engine.run(REF, WEEK, fence)

    assert all(path.exists() for path in hidden)


def test_a_folder_with_another_table_is_refused(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 1)
    other = plant(writer, "nested/metadata/00000-x.metadata.json")
    orphan = plant(writer)

    with pytest.raises(TableRefused, match="metadata of another table"):
        engine.run(REF, WEEK, fence)

    assert other.exists()
    assert orphan.exists()


def test_if_no_file_is_in_use_nothing_is_deleted(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence, monkeypatch: pytest.MonkeyPatch
):
    """A listing that spells every path differently must not empty the table."""
    create(writer)
    expected = fill(writer, 2)
    make_old(paths_on_disk(writer))
    original = remove_orphan_files.files_below

    def elsewhere(io, location):
        for file in original(io, location):
            if not file.location.endswith(".json"):
                yield remove_orphan_files.Listed(f"/mnt{file.location}", file.size, file.modified_ms)

    monkeypatch.setattr(remove_orphan_files, "files_below", elsewhere)

    with pytest.raises(TableRefused, match="none of the"):
        engine.run(REF, WEEK, fence)

    assert rows_of(writer) == sorted(expected)


@pytest.mark.parametrize("gone", ["file", "folder"])
def test_a_file_that_another_writer_deletes_during_the_listing_is_left_out(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence, monkeypatch: pytest.MonkeyPatch, gone: str
):
    """A commit that is repeated deletes the manifests of its first try."""
    create(writer)
    expected = fill(writer, 1)
    orphan, other = plant(writer), plant(writer, "data/part=1/x.parquet")
    deleted: list[Path] = []

    class Racing(list[os.DirEntry[str]]):
        """What the folder had; the file, or its folder, is deleted after that."""

        def __init__(self, folder: str) -> None:
            with os.scandir(folder) as entries:
                super().__init__(entries)
            if Path(folder) == (other.parent if gone == "file" else other.parent.parent):
                other.unlink()
                deleted.append(other)
                if gone == "folder":
                    other.parent.rmdir()

        def __enter__(self) -> Racing:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(list_files, "os", SimpleNamespace(scandir=Racing))
    result = engine.run(REF, WEEK, fence)

    assert deleted == [other]
    assert not orphan.exists()
    assert result.details["deleted_files"] == 1
    assert rows_of(writer) == sorted(expected)


def test_a_table_whose_folder_is_missing_is_an_error(engine: PyIcebergEngine, writer: Catalog, fence: Fence, tmp_path: Path):
    """Unknown is not empty."""
    with pytest.raises(FileNotFoundError):
        list(list_files.files_below(create(writer).io, f"file://{tmp_path}/nowhere"))


def loose_file(writer: Catalog) -> Path:
    """An old data file that no snapshot names yet, as a slow writer leaves it before its commit."""
    path = plant(writer, "data/loose.parquet")
    pq.write_table(arrow(rows([999])), path)
    make_old([str(path)])
    return path


def test_a_file_that_is_committed_during_the_run_is_kept(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """A writer that took longer than the age guard commits between the listing and the deletion."""
    create(writer)
    fill(writer, 2)
    orphan, loose = plant(writer), loose_file(writer)
    committed: list[int] = []

    def commit_late(progress: object) -> None:
        if not committed:
            committed.append(1)
            writer.load_table(REF.identifier).add_files([f"file://{loose}"])

    engine.run(REF, WEEK, fence, progress=commit_late)

    assert not orphan.exists()
    assert loose.exists()
    assert (999, 0, "a999") in rows_of(writer)


def test_a_file_that_another_engine_spells_differently_is_kept(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """The table is at file:///x, and Spark committed file:/x/data/…"""
    create(writer)
    fill(writer, 1)
    loose = loose_file(writer)
    writer.load_table(REF.identifier).add_files([f"file:{loose}"])

    result = engine.run(REF, WEEK, fence)

    assert result.details["orphan_files"] == 0
    assert loose.exists()


def test_a_whole_maintenance_leaves_only_what_is_used(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 6)
    engine.run(REF, RewriteDataFiles(min_input_files=2), fence)
    engine.run(REF, ExpireSnapshots(older_than=0), fence)
    make_old(paths_on_disk(writer))

    result = engine.run(REF, WEEK, fence)

    assert result.details["orphan_files"] == 0
    assert rows_of(writer) == sorted(expected)


@pytest.mark.parametrize(("older_than", "force", "allowed"), [("P6D", False, False), ("P6D", True, True), ("P7D", False, True)])
def test_an_age_below_a_week_needs_force(older_than: str, force: bool, allowed: bool):
    given = [{"action": "remove_orphan_files", "older_than": older_than, "force": force}]

    if allowed:
        assert parse_actions(given)[0].force is force
    else:
        with pytest.raises(ActionsInvalid, match="less than 7 days"):
            parse_actions(given)
