"""Convert Trino's column types to Arrow types. Only the type signatures of a result decide, never its values.

Types that Arrow or Parquet do not have keep Trino's text form: intervals, times with a zone, UUIDs, IP addresses, JSON,
geometry, sketches, and the types of plugins. Arrow and Parquet store at most nanoseconds: finer digits of a timestamp are
truncated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.engines.port import ProtocolBroken

MAX_DEPTH = 32  # levels of nesting; a deeper signature is refused, because it could exhaust the stack
DEFAULT_PRECISION = 3
MAX_FRACTION_DIGITS = 9  # digits after the second that Arrow stores

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
    """One type: its name in Trino, its Arrow type, and the types of its elements or fields."""

    raw: str
    arrow: pa.DataType
    parts: tuple[TrinoType, ...] = ()
    too_fine: bool = False  # its text has more fractional digits than Arrow stores

    @property
    def is_nested(self) -> bool:
        return bool(self.parts)


def read_signature(signature: Any, depth: int = 0) -> TrinoType:
    """Return the type that a `typeSignature` describes."""
    if not isinstance(signature, dict):
        raise ProtocolBroken(f"a column's type signature is not an object but {type(signature).__name__}")
    raw, arguments = signature.get("rawType"), signature.get("arguments", [])
    if not isinstance(raw, str) or not isinstance(arguments, list) or depth > MAX_DEPTH:
        raise ProtocolBroken(f"a column's type signature is malformed or deeper than {MAX_DEPTH} levels")
    try:
        return _build(raw, arguments, depth)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, pa.ArrowException) as wrong:
        raise ProtocolBroken(f"a column's type signature is malformed: {raw[:40]!r}") from wrong


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
            return TrinoType(raw, _time(digits), too_fine=digits > MAX_FRACTION_DIGITS)
        case "timestamp" | "timestamp with time zone":
            digits = _precision(arguments)
            return TrinoType(
                raw, pa.timestamp(_unit(digits), None if raw == "timestamp" else "UTC"), too_fine=digits > MAX_FRACTION_DIGITS
            )
    return TrinoType(raw, PLAIN.get(raw, pa.string()))


def _field_names(fields: list[Mapping[str, Any]]) -> list[str]:
    """Return unique field names. Fields of a row may be unnamed or share a name, but Parquet readers need unique names."""
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
