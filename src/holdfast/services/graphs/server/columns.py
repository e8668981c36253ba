"""The types of columns: of a mapping, of Parquet files, and of the engine. Pure.

A mapping declares LIST, MAP and STRUCT without the types of their items. The files have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.extras import lazily

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.types as types
else:
    pa = lazily("pyarrow")
    types = lazily("pyarrow.types")

NESTED: Final = {"LIST": "STRING[]", "MAP": "MAP(STRING, STRING)", "STRUCT": "STRUCT(value STRING)"}  # of tables without files
PLAIN: Final = frozenset(
    {
        *("STRING", "INT64", "INT32", "INT16", "INT8", "DOUBLE", "FLOAT"),
        *("DATE", "TIMESTAMP", "BOOL", "BLOB", "UUID"),
    }
)
UNITS: Final = {"us": "TIMESTAMP", "ms": "TIMESTAMP_MS", "s": "TIMESTAMP_SEC", "ns": "TIMESTAMP_NS"}


class UnknownType(Exception):
    """A declared type that no engine has, or items that the engine cannot store."""


def quoted(name: str) -> str:
    """A name of a table or column in Cypher."""
    if "`" in name or "\\" in name:
        raise UnknownType(f"the name {name!r} contains a character that Cypher cannot quote")
    return f"`{name}`"


def engine_type(declared: str, arrow: pa.DataType | None) -> str:
    """The engine's type of a column that a mapping declares and that files have as `arrow` (None: there are no files)."""
    if declared in PLAIN:
        return declared
    if declared not in NESTED:
        raise UnknownType(f"there is no type {declared}; there are: {', '.join(sorted(PLAIN | set(NESTED)))}")
    return NESTED[declared] if arrow is None else _of_arrow(arrow)


def _items() -> Sequence[tuple[Callable[[Any], bool], Callable[[Any], str]]]:
    """Tests of Arrow types with the names of the engine's types; the first that fits counts."""
    return (
        (lambda t: types.is_string(t) or types.is_large_string(t) or types.is_dictionary(t), lambda _: "STRING"),
        (types.is_integer, lambda t: f"{'U' if types.is_unsigned_integer(t) else ''}INT{t.bit_width}"),
        (types.is_float64, lambda _: "DOUBLE"),
        (types.is_float32, lambda _: "FLOAT"),
        (types.is_boolean, lambda _: "BOOL"),
        (types.is_date, lambda _: "DATE"),
        (lambda t: types.is_timestamp(t) and t.tz is None, lambda t: UNITS[t.unit]),
        (types.is_timestamp, lambda _: "TIMESTAMP_TZ"),
        (lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t), lambda _: "BLOB"),
        (lambda t: types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t), _list_name),
        (types.is_map, lambda t: f"MAP({_of_arrow(t.key_type)}, {_of_arrow(t.item_type)})"),
        (types.is_struct, lambda t: f"STRUCT({', '.join(f'{_field(f.name)} {_of_arrow(f.type)}' for f in t)})"),
    )


def _field(name: str) -> str:
    """The name of a field of a STRUCT. kuzu makes quotes a part of it, so they are used only where they are needed."""
    return name if name.isascii() and name.isidentifier() else quoted(name)


def _list_name(arrow: Any) -> str:
    return f"{_of_arrow(arrow.value_type)}[]"


def _of_arrow(arrow: pa.DataType) -> str:
    if getattr(arrow, "extension_name", "") == "arrow.uuid":
        return "UUID"
    for fits, name in _items():
        if fits(arrow):
            return name(arrow)
    raise UnknownType(f"the engine cannot store items of the type {arrow}; CAST them in the mapping's SQL")


def needs_rewrite(arrow: pa.DataType) -> bool:
    """Whether the engine cannot read this type from a file: timestamps in nanoseconds."""
    return bool(types.is_timestamp(arrow) and arrow.unit == "ns")


def rewritten(arrow: pa.DataType) -> pa.DataType:
    """The type that the engine reads in its place."""
    return pa.timestamp("us", arrow.tz)
