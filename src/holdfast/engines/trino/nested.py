"""Read any page: decode the rows against the types of their columns, then build the columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.engines.trino.signature import PLAIN, TrinoType
from holdfast.engines.trino.text import from_text

FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
TEXTS = frozenset({"varchar", "char", "decimal", "time", "timestamp", "timestamp with time zone", "json", "uuid", "ipaddress"})


class NestedReader:
    """Reads the pages of one result."""

    def __init__(self, types: tuple[TrinoType, ...]) -> None:
        self._types = types
        self._decoder = msgspec.json.Decoder(list[tuple[tuple(map(_in_json, types))]])  # type: ignore[misc]

    def columns(self, page: bytes) -> list[pa.Array]:
        """Return the columns of a page. Raises if a value does not have the type of its column."""
        rows = self._decoder.decode(page)
        columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [[] for _ in self._types]
        return [build(values, type_) for values, type_ in zip(columns, self._types, strict=True)]


def _in_json(type_: TrinoType) -> Any:
    """The JSON type of a value in a response. msgspec checks it while it decodes."""
    match type_.raw, type_.parts:
        case "array", (item,):
            return list[_in_json(item)] | None  # type: ignore[misc]
        case "map", (_, value):
            return dict[str, _in_json(value)] | None  # type: ignore[misc]
        case "row", parts:
            return tuple[tuple(map(_in_json, parts))] | None  # type: ignore[misc]
        case "boolean", _:
            return bool | None
        case (("tinyint" | "smallint" | "integer" | "bigint"), _):
            return int | None
        case (("real" | "double"), _):
            return float | str | None
        case "unknown", _:
            return None
        case raw, _ if raw in TEXTS or raw in PLAIN:
            return str | None
    return Any  # the type of a plugin: any JSON value


def build(values: Sequence[Any], type_: TrinoType) -> pa.Array:
    """Build a column from decoded values."""
    match type_.raw, type_.parts:
        case "array", (item,):
            inner = build(list(chain.from_iterable(filter(None, values))), item)
            return pa.ListArray.from_arrays(_offsets(values), inner, type=type_.arrow)
        case "map", (key, value):
            full = [one for one in values if one]
            keys = from_keys(list(chain.from_iterable(full)), key)
            items = build(list(chain.from_iterable(one.values() for one in full)), value)
            return pa.MapArray.from_arrays(_offsets(values), keys, items, type=type_.arrow)
        case "row", parts:
            fields = [build([None if one is None else one[index] for one in values], part) for index, part in enumerate(parts)]
            empty = pa.array([one is None for one in values], pa.bool_())
            return pa.StructArray.from_arrays(fields, fields=list(type_.arrow), mask=empty)
        case (("boolean" | "tinyint" | "smallint" | "integer" | "bigint" | "unknown"), _):
            return pa.array(values, type_.arrow)
        case (("real" | "double"), _):
            return pa.array([FLOATS[one] if isinstance(one, str) else one for one in values], type_.arrow)
    return from_text(pa.array(values if _is_text(type_) else [_printed(one) for one in values], pa.string()), type_)


def from_keys(keys: list[str], type_: TrinoType) -> pa.Array:
    """Convert the keys of maps. In JSON they are texts, whatever type they have in Trino."""
    if type_.is_nested:
        raise pa.ArrowInvalid(f"a map with keys of type {type_.raw} cannot be parsed from its text")
    texts = pa.array(keys, pa.string())
    return from_text(texts, type_)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """The offset at which each list starts; None for a null list."""
    offsets: list[int | None] = []
    end = 0
    for one in values:
        offsets.append(None if one is None else end)
        end += len(one) if one else 0
    return pa.array([*offsets, end], pa.int32())


def _is_text(type_: TrinoType) -> bool:
    return type_.raw in TEXTS or type_.raw in PLAIN


def _printed(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
