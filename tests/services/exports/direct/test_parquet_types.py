"""Any table that Arrow can hold survives the way into a Parquet file and out again; types follow from columns alone."""

from __future__ import annotations

import gc
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_tables import meaning, tables
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from holdfast.engines.port import Column
from holdfast.parquet.files import PartFiles, Shape
from holdfast.parquet.schema import NotStorable, fit, iso_interval, storable, storable_schema

INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,9}))?S)?)?"
)


def columns_of(schema: pa.Schema) -> list[Column]:
    return [Column(field.name, str(field.type), field.type) for field in schema]


def written(table: pa.Table, folder: Path, cuts: list[int], shape: Shape | None = None) -> pa.Table:
    """The table by way of files, in batches that are cut there."""
    schema = storable_schema(columns_of(table.schema))
    files = PartFiles(schema, lambda number: folder / f"{number}.parquet", shape or Shape())
    parts = [files.write(_between(table, start, end)) for start, end in zip([0, *cuts], [*cuts, table.num_rows], strict=True)]
    parts = [part for part in [*parts, files.finish()] if part is not None]
    assert sum(part.rows for part in parts) == table.num_rows
    return pa.concat_tables([pq.read_table(part.path) for part in parts])


def _between(table: pa.Table, start: int, end: int) -> list[pa.RecordBatch]:
    return table.slice(start, end - start).to_batches() if end > start else []


@pytest.mark.more
@given(table=tables(), data=st.data())
@how(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_any_table_survives(table: pa.Table, data: st.DataObject, tmp_path: Path):
    cuts = sorted(data.draw(st.lists(st.integers(0, table.num_rows), max_size=3)))

    back = written(table, tmp_path, cuts)

    assert back.column_names == table.column_names
    for name in table.column_names:
        assert _as_text_is(meaning(back[name]), meaning(table[name]))


def _as_text_is(found: Any, wanted: Any) -> bool:
    """Equal, where a text may stand for the interval that it spells, and a zone that says UTC for another that does."""
    if isinstance(wanted, tuple) and len(wanted) == 3 and isinstance(found, str):
        return spelled(found) == wanted
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(found) == len(wanted) and all(map(_as_text_is, found, wanted))
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_as_text_is(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)


def spelled(text: str) -> tuple[int, int, int]:
    match = INTERVAL.fullmatch(text)
    assert match, text
    years, months, days, hours, minutes = (int(group or 0) for group in match.groups()[:5])
    sign, seconds, fraction = match.groups()[5:]
    rest = int(seconds or 0) * 10**9 + int((fraction or "").ljust(9, "0"))
    return years * 12 + months, days, (hours * 3600 + minutes * 60) * 10**9 + (-rest if sign else rest)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_an_interval_is_spelled_without_loss(months: int, days: int, nanoseconds: int):
    assert spelled(iso_interval(months, days, nanoseconds)) == (months, days, nanoseconds)


@pytest.mark.parametrize(
    ("given_type", "stored"),
    [
        (pa.decimal256(20, 3), pa.decimal128(20, 3)),
        (pa.decimal256(60, 3), pa.decimal256(60, 3)),
        (pa.timestamp("s", "Europe/Zurich"), pa.timestamp("ms", "Europe/Zurich")),
        (pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.null(), pa.string()),
        (pa.list_(pa.date64(), 3), pa.list_(pa.date32())),
        (pa.struct([("a", pa.float16())]), pa.struct([("a", pa.float32())])),
        (pa.month_day_nano_interval(), pa.string()),
        (pa.uint64(), pa.uint64()),
    ],
)
def test_a_type_becomes_what_parquet_has(given_type: pa.DataType, stored: pa.DataType):
    assert storable(given_type) == stored


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("kind", ["fixed", "view", "large view"])
def test_lists_of_views_with_nulls_among_them_keep_their_items(kind: str, start: int):
    """No function of Arrow picks from views of text, and a slice shares its items with its whole."""
    items, mask = pa.array(["a", "b", "c", "d", "e", "f"], pa.string_view()), pa.array([False, True, False])
    if kind == "fixed":
        lists = pa.FixedSizeListArray.from_arrays(items, 2, mask=mask)
    else:
        array, whole = (pa.ListViewArray, pa.int32()) if kind == "view" else (pa.LargeListViewArray, pa.int64())
        lists = array.from_arrays(pa.array([0, 2, 4], whole), pa.array([2, 2, 2], whole), items, mask=mask)

    fitted = fit(lists.slice(start), storable(lists.type))

    assert fitted.to_pylist() == [["a", "b"], None, ["e", "f"]][start:]


def test_a_union_becomes_a_struct_with_the_name_of_its_member():
    types = pa.array([0, 1, 0], pa.int8())
    sparse = pa.UnionArray.from_sparse(types, [pa.array([1, 2, None]), pa.array(["a", "b", "c"])], ["n", "t"])
    dense = pa.UnionArray.from_dense(types, pa.array([0, 0, 1], pa.int32()), [pa.array([1, None]), pa.array(["b"])], ["n", "t"])
    for union in (sparse, dense):
        assert fit(union, storable(union.type)).to_pylist() == [
            {"tag": "n", "n": 1, "t": None},
            {"tag": "t", "n": None, "t": "b"},
            {"tag": "n", "n": None, "t": None},
        ]


def test_what_no_file_can_hold_is_said_with_its_column():
    with pytest.raises(NotStorable, match="column 'x' more than once"):
        storable_schema([Column("x", "INTEGER", pa.int32()), Column("x", "INTEGER", pa.int32())])
    with pytest.raises(NotStorable, match="column 'empty'"):
        storable_schema([Column("empty", "STRUCT()", pa.struct([]))])
    with pytest.raises(NotStorable, match="no columns"):
        storable_schema([])


def test_a_value_that_does_not_fit_is_refused_and_never_changed():
    far = pa.array([2**62], pa.timestamp("s"))

    with pytest.raises(NotStorable):
        fit(far, storable(far.type))


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


def test_w_16_an_empty_result_is_a_valid_file_with_the_whole_schema(tmp_path: Path):
    table = pa.table({"b": pa.array([], pa.int64()), "a": pa.array([], pa.list_(pa.decimal128(38, 2)))})

    back = written(table, tmp_path, [])

    assert (back.num_rows, back.column_names) == (0, ["b", "a"])
    assert back.schema.types == table.schema.types


def test_a_discarded_file_is_removed_without_a_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A writer that is collected writes its footer, and that file is closed by then."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    files = PartFiles(pa.schema({"a": pa.int64()}), lambda number: tmp_path / f"{number}", Shape())
    files.write([pa.RecordBatch.from_pydict({"a": [1, 2, 3]})])

    files.discard()
    gc.collect()

    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_files_have_a_limit_and_rows_keep_their_order(tmp_path: Path):
    table = pa.table({"x": pa.array([number / 7 for number in range(100_000)])})
    shape = Shape(file_bytes=20_000)

    back = written(table, tmp_path, [*range(10_000, 100_000, 10_000)], shape)

    assert len(list(tmp_path.iterdir())) > 2
    assert back["x"].to_pylist() == table["x"].to_pylist()


def test_numbers_and_days_that_follow_each_other_take_little_room_and_others_can_read_them(tmp_path: Path):
    days = pa.array(range(100_000), pa.int32()).cast(pa.date32())
    numbers = pa.array(range(100_000), pa.int64())
    table = pa.table({"id": numbers, "born": days, "seen": pa.array(days, pa.timestamp("us", "UTC"))})

    written(table, tmp_path, [])

    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 20_000
    read = duckdb.sql(f"SELECT count(DISTINCT id), max(id), min(born)::VARCHAR, count(DISTINCT seen) FROM '{file}'").fetchall()
    assert read == [(100_000, 99_999, "1970-01-01", 100_000)]


def test_big_numbers_stay_exact(tmp_path: Path):
    table = pa.table({"u": pa.array([2**64 - 1], pa.uint64()), "d": pa.array([Decimal(10**38 - 1)], pa.decimal128(38, 0))})

    assert written(table, tmp_path, []).to_pylist() == [{"u": 2**64 - 1, "d": Decimal(10**38 - 1)}]
