"""The property types of graphs, and which Arrow types fit each. Pure. Used by: the check of mappings, exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # heavy, and an extra
    import pyarrow as pa

# The Arrow type that files have for each type, by the name of its constructor in pyarrow. Types that are not here leave a
# choice (the unit of a timestamp, the items of a list): files have the type that the engine returns.
ARROW: Final = {
    "STRING": "string", "INT64": "int64", "INT32": "int32", "INT16": "int16", "INT8": "int8", "DOUBLE": "float64",
    "FLOAT": "float32", "DATE": "date32", "BOOL": "bool_", "BLOB": "binary",
}  # fmt: skip


def _integer(bits: int) -> Callable[[Any, pa.DataType], bool]:
    """Integers whose values all fit into a signed integer of so many bits."""

    def fits(types: Any, arrow: pa.DataType) -> bool:
        if types.is_signed_integer(arrow):
            return bool(arrow.bit_width <= bits)
        return bool(types.is_unsigned_integer(arrow) and arrow.bit_width < bits)

    return fits


def _is_text(types: Any, arrow: pa.DataType) -> bool:
    return bool(types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow))


def _is_bytes(types: Any, arrow: pa.DataType) -> bool:
    return bool(types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow))


def _is_uuid(types: Any, arrow: pa.DataType) -> bool:
    return getattr(arrow, "extension_name", "") == "arrow.uuid" or _is_text(types, arrow)


def _is_list(types: Any, arrow: pa.DataType) -> bool:
    return bool(types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow))


# Called with `pyarrow.types` and the Arrow type of a column.
FITS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "STRING": lambda types, arrow: _is_text(types, arrow) or bool(types.is_dictionary(arrow)),
    "INT64": _integer(64),
    "INT32": _integer(32),
    "INT16": _integer(16),
    "INT8": _integer(8),
    "DOUBLE": lambda types, arrow: types.is_float64(arrow) or types.is_float32(arrow),
    "FLOAT": lambda types, arrow: types.is_float32(arrow),
    "DATE": lambda types, arrow: types.is_date(arrow),
    "TIMESTAMP": lambda types, arrow: types.is_timestamp(arrow),
    "BOOL": lambda types, arrow: types.is_boolean(arrow),
    "BLOB": _is_bytes,
    "UUID": _is_uuid,
    "LIST": _is_list,
    "MAP": lambda types, arrow: types.is_map(arrow),
    "STRUCT": lambda types, arrow: types.is_struct(arrow),
}
