"""Types of the graph in files: what widens, what stays as the engine has it, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.engines.port import Column
from holdfast.parquet.schema import fitted
from holdfast.services.exports.export.declared import TypesDiffer, declared_schema, widenings

US, NS = pa.timestamp("us"), pa.timestamp("ns", "UTC")


@pytest.mark.parametrize(
    ("declared", "found", "becomes"),
    [
        ("INT64", pa.int8(), pa.int64()),
        ("INT64", pa.uint32(), pa.int64()),
        ("INT32", pa.int16(), pa.int32()),
        ("INT16", pa.uint8(), pa.int16()),
        ("INT8", pa.int8(), pa.int8()),
        ("DOUBLE", pa.float32(), pa.float64()),
        ("FLOAT", pa.float32(), pa.float32()),
        ("STRING", pa.dictionary(pa.int8(), pa.string()), pa.string()),
        ("STRING", pa.large_string(), pa.string()),
        ("DATE", pa.date64(), pa.date32()),
        ("BLOB", pa.binary(2), pa.binary()),
        ("TIMESTAMP", US, US),
        ("TIMESTAMP", NS, NS),
        ("LIST", pa.list_(pa.int8()), pa.list_(pa.int8())),
        ("UUID", pa.string(), pa.string()),
    ],
)
def test_what_is_narrower_is_widened_and_keeps_its_values(declared: str, found: pa.DataType, becomes: pa.DataType):
    schema = declared_schema([{"name": "x", "type": declared}])((Column("x", "what the engine says", found),))
    nothing = fitted(pa.record_batch([pa.array([None], found)], names=["x"]), schema)

    assert schema.types == [becomes]
    assert nothing.to_pylist() == [{"x": None}]


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ("INT64", pa.uint64()),
        ("INT32", pa.int64()),
        ("INT64", pa.float64()),
        ("FLOAT", pa.float64()),
        ("DOUBLE", pa.int32()),
        ("DOUBLE", pa.decimal128(9, 2)),
        ("STRING", pa.int64()),
        ("DATE", US),
    ],
)
def test_what_might_lose_something_is_refused_by_name(declared: str, found: pa.DataType):
    columns = (Column("x", "WHAT IT IS", found),)

    with pytest.raises(TypesDiffer, match=f"column 'x' is WHAT IT IS, and the mapping declares {declared}; CAST"):
        declared_schema([{"name": "x", "type": declared}])(columns)


def test_an_engine_that_writes_by_itself_casts_what_is_narrower_and_nothing_else():
    declared = [
        {"name": name, "type": kind} for name, kind in (("a", "INT64"), ("b", "INT64"), ("c", "STRING"), ("d", "DOUBLE"))
    ]
    types = (pa.int32(), pa.int64(), pa.large_string(), pa.float32())
    columns = [Column(one["name"], "what it is", arrow) for one, arrow in zip(declared, types, strict=True)]

    assert widenings(declared, columns) == {"a": "BIGINT", "d": "DOUBLE"}
    with pytest.raises(TypesDiffer):
        widenings(declared, [Column("a", "VARCHAR", pa.string()), *columns[1:]])
