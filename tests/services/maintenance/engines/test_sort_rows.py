"""Sorting with runs on disk gives the same as sorting in memory, with nulls, NaN and equal keys."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from holdfast.services.maintenance.engines.pyiceberg.sort_rows import Key, compared, in_order, sorted_chunks


def table(seed: int, rows: int) -> pa.Table:
    chance = random.Random(seed)
    a = [chance.choice([None, 1, 2, 3, 3]) for _ in range(rows)]
    b = [chance.choice([None, float("nan"), -1.5, 0.0, 2.5]) for _ in range(rows)]
    return pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.float64()), "n": pa.array(range(rows), pa.int64())})


@pytest.mark.parametrize(
    "keys",
    [
        [Key("a"), Key("n")],
        [Key("a", descending=True, nulls_first=True), Key("n", descending=True)],
        [Key("b"), Key("a", nulls_first=True), Key("n")],
    ],
    ids=["ascending", "descending", "nan"],
)
def test_runs_on_disk_are_merged_in_order(keys):
    whole = table(7, 5000)
    chunks = [whole.slice(start, 250) for start in range(0, 5000, 250)]

    merged = pa.concat_tables(list(sorted_chunks(iter(chunks), keys, run_bytes=chunks[0].nbytes * 2)))

    assert merged.num_rows == 5000
    assert merged["n"].to_pylist() == in_order(whole, keys)["n"].to_pylist()


def test_nothing_to_sort():
    assert list(sorted_chunks(iter([]), [Key("a")])) == []


@pytest.mark.parametrize(
    ("one", "other", "key", "expected"),
    [
        ((1,), (2,), Key("a"), -1),
        ((1,), (2,), Key("a", descending=True), 1),
        ((None,), (2,), Key("a"), 1),
        ((None,), (2,), Key("a", nulls_first=True), -1),
        ((None,), (None,), Key("a"), 0),
        ((float("nan"),), (2.0,), Key("a"), 1),
    ],
)
def test_rows_are_compared_as_they_are_sorted(one, other, key, expected):
    assert compared(one, other, [key]) == expected
