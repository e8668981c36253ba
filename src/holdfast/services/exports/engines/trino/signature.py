"""Trino's column types as Arrow types, from the signatures that come with a result and never from its values.

What Arrow or Parquet cannot hold stays the text that Trino prints: intervals, times with a zone, UUIDs, addresses, JSON,
geometry, sketches, and whatever a plugin adds. Both end at nanoseconds: finer digits of a timestamp are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.services.exports.engines.port import ProtocolBroken

DEEPEST = 32  # levels of nesting; a signature deeper than that is no type but an attack
DEFAULT_PRECISION = 3
FINEST = 9  # digits after the second that Arrow keeps

PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "varbinary": pa.binary(),
    "date": pa.date32(),
    "unknown": pa.null(),
}


@dataclass(frozen=True, slots=True)
class TrinoType:
    """One type: what Trino calls it, what it becomes, and the types that it is made of."""

    raw: str
    arrow: pa.DataType
    parts: tuple[TrinoType, ...] = ()
    too_fine: bool = False  # it prints more digits after the second than Arrow keeps

    @property
    def is_nested(self) -> bool:
        return bool(self.parts)


def read_signature(signature: Any, depth: int = 0) -> TrinoType:
    """The type that a `typeSignature` describes."""
    if not isinstance(signature, dict):
        raise ProtocolBroken("a column's type signature is not one")
    raw, arguments = signature.get("rawType"), signature.get("arguments", [])
    if not isinstance(raw, str) or not isinstance(arguments, list) or depth > DEEPEST:
        raise ProtocolBroken("a column's type signature is not one")
    try:
        return _build(raw, arguments, depth)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, pa.ArrowException) as wrong:
        raise ProtocolBroken(f"a column's type signature is not one: {raw[:40]!r}") from wrong


def _build(raw: str, arguments: list[Any], depth: int) -> TrinoType:
    match raw:
        case "array":
            item = read_signature(arguments[0]["value"], depth + 1)
            return TrinoType(raw, pa.list_(item.arrow), (item,))
        case "map":
            key, value = (read_signature(argument["value"], depth + 1) for argument in arguments)
            return TrinoType(raw, pa.map_(key.arrow, value.arrow), (key, value))
        case "row":
            parts = tuple(read_signature(argument["value"]["typeSignature"], depth + 1) for argument in arguments)
            names = _field_names([argument["value"] for argument in arguments])
            return TrinoType(
                raw, pa.struct([pa.field(name, part.arrow) for name, part in zip(names, parts, strict=True)]), parts
            )
        case "decimal":
            precision, scale = (_number(argument) for argument in arguments)
            return TrinoType(raw, pa.decimal128(precision, scale))
        case "time":
            digits = _precision(arguments)
            return TrinoType(raw, _time(digits), too_fine=digits > FINEST)
        case "timestamp" | "timestamp with time zone":
            digits = _precision(arguments)
            return TrinoType(raw, pa.timestamp(_unit(digits), None if raw == "timestamp" else "UTC"), too_fine=digits > FINEST)
    return TrinoType(raw, PLAIN.get(raw, pa.string()))


def _field_names(fields: list[Mapping[str, Any]]) -> list[str]:
    """Fields of a row may have no name, and two may share one; readers of Parquet want each to have its own."""
    names: list[str] = []
    for index, field in enumerate(fields):
        given = (field.get("fieldName") or {}).get("name")
        name = given if isinstance(given, str) and given else f"field{index}"
        names.append(f"{name}_{index}" if name in names else name)
    return names


def _number(argument: Mapping[str, Any]) -> int:
    value = argument["value"]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a number")
    return value


def _precision(arguments: list[Any]) -> int:
    return _number(arguments[0]) if arguments else DEFAULT_PRECISION


def _unit(precision: int) -> str:
    return "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


def _time(precision: int) -> pa.DataType:
    unit = _unit(precision)
    return pa.time32(unit) if unit == "ms" else pa.time64(unit)
