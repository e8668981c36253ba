"""The answer of the catalog to a commit is lost: the snapshot is looked up, and files that may be in use are never deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from holdfast.services.maintenance.engines.actions import RewriteDataFiles
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import EngineFailed, Fence
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import REF, create, files_of, fill, paths_on_disk, rows_of

REWRITE = RewriteDataFiles(min_input_files=2)


@pytest.fixture
def broken(catalogs: Catalogs, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Breaks the connection at the first commit: after it was executed, or before."""

    def arrange(error: Exception, *, executed: bool) -> None:
        catalog: Any = catalogs.open("lake")
        original, calls = catalog.commit_table, []

        def commit(*given: Any) -> Any:
            calls.append(1)
            if len(calls) > 1:
                return original(*given)
            if executed:
                original(*given)
            raise error

        monkeypatch.setattr(catalog, "commit_table", commit)

    return arrange


@pytest.mark.parametrize("error", [ConnectionError("reset"), CommitFailedException("sent twice")], ids=["lost", "sent-twice"])
def test_a_commit_that_was_executed_is_found(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence, broken: Callable[..., None], error: Exception
):
    create(writer)
    expected = fill(writer, 3)
    broken(error, executed=True)

    result = engine.run(REF, REWRITE, fence)

    assert result.details["groups"] == 1
    assert len(files_of(writer)) == 1
    assert rows_of(writer) == sorted(expected)


def test_if_it_is_unknown_the_files_stay(engine: PyIcebergEngine, writer: Catalog, fence: Fence, broken: Callable[..., None]):
    create(writer)
    expected = fill(writer, 3)
    before = paths_on_disk(writer)
    broken(ConnectionError("reset"), executed=False)

    with pytest.raises(EngineFailed, match="may still be committed"):
        engine.run(REF, REWRITE, fence)

    assert rows_of(writer) == sorted(expected)
    assert {path.rpartition(".")[2] for path in paths_on_disk(writer) - before} == {"parquet", "avro"}
    assert engine.run(REF, REWRITE, fence).after.data_files == 1
