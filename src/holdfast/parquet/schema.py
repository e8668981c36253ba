"""Convert Arrow types to types that Parquet has: the same type if possible, else the nearest one without loss.

decimal32/64/256     decimal128 if its precision is enough, else decimal256
timestamp[s]         timestamp[ms]; the Arrow schema keeps a zone, other readers see UTC
time32[s], date64    time32[ms], date32
interval             text in ISO 8601, such as P1M2DT3.5S: Parquet's interval has only milliseconds
dictionary, run ends the values themselves
views, fixed lists   plain strings, binaries and lists
half floats          float
null                 text that is always null, because many readers do not support the null type
union                a struct with the member's name in `tag` and one nullable field per member

The engine's columns determine the types, once; values are converted to them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engines.port import Column
from holdfast.errors import UsageError
from holdfast.extras import lazily

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = lazily("pyarrow")
    pc = lazily("pyarrow.compute")

WIDEST_DECIMAL128 = 38
NANOSECONDS = 1_000_000_000


class NotStorable(UsageError):
    """Parquet cannot store this column. The message says how to change the query."""


def storable_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of the files, in the order of the columns."""
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise NotStorable(f"the query returns column {twice[0]!r} more than once; rename one with AS")
    if not columns:
        raise NotStorable("the query returns no columns")
    return pa.schema([pa.field(column.name, _storable(column)) for column in columns])


def _storable(column: Column) -> pa.DataType:
    try:
        return storable(column.arrow)
    except NotStorable as problem:
        raise NotStorable(f"column {column.name!r} ({column.type}): {problem}") from None


def storable(given: pa.DataType) -> pa.DataType:
    """The type in the file of a column of this type."""
    types = pa.types
    if types.is_decimal(given):
        wide = given.precision > WIDEST_DECIMAL128
        return pa.decimal256(given.precision, given.scale) if wide else pa.decimal128(given.precision, given.scale)
    if types.is_dictionary(given) or types.is_run_end_encoded(given):
        return storable(given.value_type)
    if types.is_struct(given):
        if given.num_fields == 0:
            raise NotStorable("Parquet has no struct without fields; remove it from the query")
        return pa.struct([_field(given.field(at)) for at in range(given.num_fields)])
    if types.is_map(given):
        return pa.map_(storable(given.key_type), _field(given.item_field))
    if types.is_large_list(given) or types.is_large_list_view(given):
        return pa.large_list(_field(given.value_field))
    if types.is_list(given) or types.is_list_view(given) or types.is_fixed_size_list(given):
        return pa.list_(_field(given.value_field))
    if types.is_union(given):
        members = [pa.field(given.field(at).name, storable(given.field(at).type)) for at in range(given.num_fields)]
        return pa.struct([pa.field("tag", pa.string()), *members])
    if isinstance(given, pa.BaseExtensionType):
        return storable(given.storage_type)
    return _plain(given)


def _plain(given: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(given) and given.unit == "s":
        return pa.timestamp("ms", given.tz)
    simple = (
        (types.is_null, pa.string),
        (types.is_float16, pa.float32),
        (types.is_date64, pa.date32),
        (types.is_interval, pa.string),
        (types.is_string_view, pa.string),
        (types.is_binary_view, pa.binary),
    )
    for matches, replacement in simple:
        if matches(given):
            return replacement()
    return pa.time32("ms") if given == pa.time32("s") else given


def _field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, storable(field.type), field.nullable)


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the types of the file; columns that have them are not copied."""
    if batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    columns = [fit(batch.column(at), schema.field(at).type) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fit(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert an array to the type that `storable` returned. Raises `NotStorable` if a value would change."""
    given, types = values.type, pa.types
    if given == wanted:
        return values
    if isinstance(given, pa.BaseExtensionType):
        return fit(values.storage, wanted)
    if types.is_dictionary(given):
        return fit(values.dictionary_decode(), wanted)
    if types.is_run_end_encoded(given):
        return fit(pc.run_end_decode(values), wanted)
    if types.is_interval(given):
        return pa.array([iso_interval(*value) if value is not None else None for value in values.to_pylist()], wanted)
    if types.is_union(given):
        return _fit_union(values, wanted)
    if types.is_nested(given):
        return _fit_nested(values, wanted)
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid as problem:
        raise NotStorable(f"a value of type {given} does not fit into {wanted}: {problem}") from None


def _fit_nested(values: Any, wanted: pa.DataType) -> pa.Array:
    types, given = pa.types, values.type
    nulls = values.is_null() if values.null_count else None
    if types.is_struct(given):
        fields = [fit(values.field(at), wanted.field(at).type) for at in range(given.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=[*wanted], mask=nulls)
    if types.is_list_view(given) or types.is_large_list_view(given) or types.is_fixed_size_list(given):
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        ends = pc.cumulative_sum(pc.cast(lengths, pa.int64())).to_pylist()
        offsets = pa.array([0, *ends], pa.int64() if types.is_large_list(wanted) else pa.int32())
        items = _items(values, wanted.value_type)
    else:
        offsets, items = _from_zero(values)
        if types.is_map(given):
            keys, held = fit(items.field(0), wanted.key_type), fit(items.field(1), wanted.item_type)
            return pa.MapArray.from_arrays(offsets, keys, held, type=wanted, mask=nulls)
        items = fit(items, wanted.value_type)
    kind = pa.LargeListArray if types.is_large_list(wanted) else pa.ListArray
    return kind.from_arrays(offsets, items, type=wanted, mask=nulls)


def _items(values: Any, wanted: pa.DataType) -> Any:
    """The concatenated items of the non-null lists, converted to the wanted type first: `drop_null` does not support every
    type."""
    nulls = values.is_null()
    if pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        held = fit(values.values.slice(values.offset * size, len(values) * size), wanted)
        lists = pa.FixedSizeListArray.from_arrays(held, size, mask=nulls)
    else:
        kind = pa.ListViewArray if pa.types.is_list_view(values.type) else pa.LargeListViewArray
        offsets, sizes = (
            pc.add(of, pa.scalar(0, of.type)) for of in (values.offsets, values.sizes)
        )  # copies, because from_arrays does not accept slices
        lists = kind.from_arrays(offsets, sizes, fit(values.values, wanted), mask=nulls)
    return lists.drop_null().flatten()


def _from_zero(values: Any) -> tuple[Any, Any]:
    """Offsets that start at zero, and the items in their range: a slice shares both with the whole array."""
    offsets = values.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    child = (
        values.values
        if not pa.types.is_map(values.type)
        else pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
    )
    return pc.subtract(offsets, offsets[0]), child.slice(first, last - first)


def _fit_union(values: Any, wanted: pa.DataType) -> pa.Array:
    """Convert a union to a struct: the name of the member of each value, and one field per member."""
    given = values.type
    codes, names = values.type_codes, pa.array([given.field(at).name for at in range(given.num_fields)])
    positions = pc.index_in(codes, pa.array(given.type_codes, pa.int8()))
    members = []
    for at in range(given.num_fields):
        held = values.field(at)
        if given.mode == "dense":
            mine = pc.if_else(pc.equal(positions, at), values.offsets, None)
            held = held.take(mine)
        members.append(fit(pc.if_else(pc.equal(positions, at), held, None), wanted.field(at + 1).type))
    return pa.StructArray.from_arrays([names.take(positions), *members], fields=[*wanted])


def iso_interval(months: int, days: int, nanoseconds: int) -> str:
    """Format an interval as ISO 8601; each part has its sign. Pure."""
    years, months = _parted(months, 12)
    seconds, fraction = _parted(nanoseconds, NANOSECONDS)
    hours, minutes = _parted(seconds, 3600)
    minutes, rest = _parted(minutes, 60)
    date = "".join(f"{value}{unit}" for value, unit in ((years, "Y"), (months, "M"), (days, "D")) if value)
    sign = "-" if nanoseconds < 0 else ""
    exact = f"{sign}{abs(rest)}" + (f".{abs(fraction):09d}".rstrip("0") if fraction else "")
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value)
    if rest or fraction:
        time += f"{exact}S"
    return f"P{date}" + (f"T{time}" if time else "") if date or time else "PT0S"


def _parted(value: int, by: int) -> tuple[int, int]:
    """Quotient and remainder, both with the sign of the value."""
    sign = -1 if value < 0 else 1
    whole, rest = divmod(abs(value), by)
    return sign * whole, sign * rest
