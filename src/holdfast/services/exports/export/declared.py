"""The schema of files follows the types that the mapping declares: narrower columns are widened, others are refused. Pure.

A table may have changed since the mapping was checked, and an engine's type is often narrower than the graph's. The keys of
nodes and edges must have the same type, whichever columns they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.engines.port import Column
from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.parquet.schema import storable_schema
from holdfast.services.exports.graph_types import ARROW, FITS

if TYPE_CHECKING:
    import pyarrow as pa

# The SQL types, the same in all engines, to which an engine that writes files itself casts narrower columns.
SQL: Final = {"INT64": "BIGINT", "INT32": "INTEGER", "INT16": "SMALLINT", "INT8": "TINYINT", "DOUBLE": "DOUBLE"}


class TypesDiffer(UsageError):
    """The engine returns a column that is not of the type that the mapping declares."""


def declared_schema(declared: Sequence[Mapping[str, str]]) -> Callable[[Sequence[Column]], pa.Schema]:
    """A function from the columns of the engine to the schema of the files, for these declared names and types, in order."""

    def schema(columns: Sequence[Column]) -> pa.Schema:
        found = storable_schema(columns)
        pairs = zip(declared, columns, found.types, strict=True)  # in the same order: the query lists its columns
        types = [_type(wanted["type"], column, arrow) for wanted, column, arrow in pairs]
        return loaded("pyarrow").schema(list(zip(found.names, types, strict=True)))

    return schema


def widenings(declared: Sequence[Mapping[str, str]], columns: Sequence[Column]) -> dict[str, str]:
    """The columns that are narrower than declared, with the SQL type to cast each to. `TypesDiffer` if a cast is not enough."""
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
            "or change the declared type"
        )
    return getattr(arrow, ARROW[wanted])() if wanted in ARROW else found
