"""The types that a mapping declares, in the files: what is narrower is widened, and what does not fit is refused.

A table may have changed since the mapping was checked, and an engine's type is often narrower than the graph's. The keys of
nodes and edges must be of one type, whatever columns they come from. Types that a declaration leaves open (the unit of a
timestamp, what a list holds) are as the engine has them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.errors import UsageError
from holdfast.services.exports.engines.port import Column
from holdfast.services.exports.extras import loaded
from holdfast.services.exports.mappings.dry_run import FITS
from holdfast.services.exports.parquet.schema import storable_schema

if TYPE_CHECKING:
    import pyarrow as pa

# The graph's type in Arrow, by the name of the function that makes it there.
ARROW: Final = {
    "STRING": "string", "INT64": "int64", "INT32": "int32", "INT16": "int16", "INT8": "int8", "DOUBLE": "float64",
    "FLOAT": "float32", "DATE": "date32", "BOOL": "bool_", "BLOB": "binary",
}  # fmt: skip

# In SQL, of every engine, where a narrower type fits: only these are ever cast by an engine that writes the files by itself.
SQL: Final = {"INT64": "BIGINT", "INT32": "INTEGER", "INT16": "SMALLINT", "INT8": "TINYINT", "DOUBLE": "DOUBLE"}


class TypesDiffer(UsageError):
    """The engine returns a column that is not of the type that the mapping declares."""


def declared_schema(declared: Sequence[Mapping[str, str]]) -> Callable[[Sequence[Column]], pa.Schema]:
    """What makes the schema of the files, for columns with these names and types, in this order."""

    def schema(columns: Sequence[Column]) -> pa.Schema:
        found = storable_schema(columns)
        pairs = zip(declared, columns, found.types, strict=True)  # in one order: the query names each column
        types = [_type(wanted["type"], column, arrow) for wanted, column, arrow in pairs]
        return loaded("pyarrow").schema(list(zip(found.names, types, strict=True)))

    return schema


def widenings(declared: Sequence[Mapping[str, str]], columns: Sequence[Column]) -> dict[str, str]:
    """The columns that are narrower than declared, and what SQL must cast them to. `TypesDiffer` where that is not enough."""
    types = declared_schema(declared)(columns).types
    pairs = zip(declared, columns, types, strict=True)
    return {
        wanted["name"]: SQL[wanted["type"]]
        for wanted, column, arrow in pairs
        if wanted["type"] in SQL and column.arrow != arrow
    }


def _type(wanted: str, column: Column, found: pa.DataType) -> pa.DataType:
    arrow = loaded("pyarrow")
    if wanted in FITS and not FITS[wanted](arrow.types, column.arrow):
        raise TypesDiffer(
            f"column {column.name!r} is {column.type}, and the mapping declares {wanted}; CAST it in the mapping's SELECT, "
            "or declare the type that it has"
        )
    return getattr(arrow, ARROW[wanted])() if wanted in ARROW else found
