"""Any table that Arrow can hold and an engine might give, and what must come back for it from a Parquet file."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

ZONES = ["UTC", "Europe/Zurich", "America/St_Johns", "+05:30"]
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


@st.composite
def decimals(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    digits = draw(st.integers(1, 76))
    scale = draw(st.integers(0, digits))
    kinds = [pa.decimal256] + ([pa.decimal128] if digits <= 38 else [])
    kinds += ([pa.decimal64] if digits <= 18 else []) + ([pa.decimal32] if digits <= 9 else [])
    kind = draw(st.sampled_from(kinds))
    unscaled = st.integers(-(10**digits) + 1, 10**digits - 1)
    return kind(digits, scale), unscaled.map(lambda number: exact(number, scale))


def exact(number: int, scale: int) -> Decimal:
    """A decimal of these digits, whatever the context of the thread would round it to."""
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


FLOATS = [
    (pa.float16(), st.floats(width=16, allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(width=64, allow_nan=False)),
]
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((kind(), integers(bits)) for kind, bits in ((pa.int8, 8), (pa.int16, 16), (pa.int32, 32), (pa.int64, 64))),
    *((kind(), integers(bits, signed=False)) for kind, bits in ((pa.uint8, 8), (pa.uint16, 16), (pa.uint32, 32))),
    (pa.uint64(), integers(64, signed=False)),
    *FLOATS,
    (pa.bool_(), st.booleans()),
    *((kind(), TEXT) for kind in (pa.string, pa.large_string, pa.string_view)),
    *((kind(), st.binary(max_size=12)) for kind in (pa.binary, pa.large_binary, pa.binary_view)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.null(), st.none()),
    (pa.date32(), integers(20)),
    (pa.date64(), integers(20).map(lambda day: day * 86_400_000)),
    (pa.time32("s"), st.integers(0, 86_399)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.time64("us"), st.integers(0, 86_400 * 10**6 - 1)),
    (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1)),
    *((pa.duration(unit), integers(48)) for unit in UNITS),
    (pa.month_day_nano_interval(), st.tuples(integers(16), integers(16), integers(60))),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "ü"])),
]


@st.composite
def timestamps(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    unit = draw(st.sampled_from(list(UNITS)))
    return pa.timestamp(unit, draw(st.sampled_from([None, *ZONES]))), integers(34).map(lambda s: s * UNITS[unit])


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, and a strategy for its values."""
    choices: list[Any] = [st.sampled_from(PLAIN), decimals(), timestamps()]
    if depth:
        choices += [lists(depth - 1), structs(depth - 1), maps(depth - 1)]
    return draw(st.one_of(choices))


@st.composite
def lists(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    inner, values = draw(kinds(depth))
    kind = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view, "fixed"]))
    items = st.none() | values
    if kind == "fixed":
        return pa.list_(inner, 2), st.lists(items, min_size=2, max_size=2)
    return kind(inner), st.lists(items, max_size=3)


@st.composite
def structs(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    fields = draw(st.lists(kinds(depth), min_size=1, max_size=3))
    named = {f"f {at}": field for at, field in enumerate(fields)}
    values = st.fixed_dictionaries({name: st.none() | inner for name, (_, inner) in named.items()})
    return pa.struct([pa.field(name, kind) for name, (kind, _) in named.items()]), values


@st.composite
def maps(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    inner, values = draw(kinds(depth))
    return pa.map_(pa.string(), inner), st.dictionaries(TEXT, st.none() | values, max_size=3).map(lambda held: [*held.items()])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table of some columns and rows, cut into batches anywhere."""
    columns = draw(st.lists(kinds(), min_size=1, max_size=4))
    count = draw(st.integers(0, 20))
    arrays = [made(kind, draw(st.lists(st.none() | values, min_size=count, max_size=count))) for kind, values in columns]
    names = [f"column {at} ü" for at in range(len(columns))]
    return pa.Table.from_arrays(arrays, names=names)


def made(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """An array of these values; times of all kinds are given as their numbers."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_fixed_size_list(kind):
        flat = [item for value in values for item in (value or [None, None])]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.FixedSizeListArray.from_arrays(made(kind.value_type, flat), type=kind, mask=mask)
    if pa.types.is_struct(kind):
        fields = [made(field.type, [value and value[field.name] for value in values]) for field in kind]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=[*kind], mask=mask)
    if pa.types.is_map(kind):
        return _listed(
            pa.MapArray,
            kind,
            values,
            lambda pairs: (
                pa.array([key for key, _ in pairs], kind.key_type),
                made(kind.item_type, [value for _, value in pairs]),
            ),
        )
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _viewed(kind, values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kept = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        return _listed(kept, kind, values, lambda items: (made(kind.value_type, items),))
    return pa.array(values, kind)


def _viewed(kind: pa.DataType, values: list[Any]) -> pa.Array:
    small = pa.types.is_list_view(kind)
    wide = pa.int32() if small else pa.int64()
    sizes = [len(value or []) for value in values]
    offsets = [sum(sizes[:at]) for at in range(len(sizes))]
    items = made(kind.value_type, [item for value in values for item in (value or [])])
    mask = pa.array([value is None for value in values], pa.bool_())
    array = pa.ListViewArray if small else pa.LargeListViewArray
    return array.from_arrays(pa.array(offsets, wide), pa.array(sizes, wide), items, type=kind, mask=mask)


def _listed(array: Any, kind: pa.DataType, values: list[Any], items: Any) -> pa.Array:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value or []))
    flat = [item for value in values for item in (value or [])]
    wide = pa.types.is_large_list(kind)
    mask = pa.array([value is None for value in values], pa.bool_())
    return array.from_arrays(pa.array(offsets, pa.int64() if wide else pa.int32()), *items(flat), type=kind, mask=mask)


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


def meaning(array: Any) -> list[Any]:
    """What the values of an array mean, whatever its type is called: instants, lengths of time, numbers, texts."""
    return [_meaning(array.type, array[at]) for at in range(len(array))]


def _meaning(kind: pa.DataType, scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    types = pa.types
    if types.is_dictionary(kind):
        return _meaning(kind.value_type, scalar.value)
    if types.is_struct(kind):
        return {kind.field(at).name: _meaning(kind.field(at).type, scalar[at]) for at in range(kind.num_fields)}
    if types.is_map(kind):
        keys, items = scalar.values.field(0), scalar.values.field(1)
        return [*zip(meaning(keys), meaning(items), strict=True)]
    if types.is_nested(kind):
        return meaning(scalar.values)
    if types.is_timestamp(kind):
        return (kind.tz, scalar.value * (10**9 // UNITS[kind.unit]))
    if types.is_time(kind) or types.is_duration(kind):
        return scalar.value * (10**9 // UNITS[kind.unit])
    if types.is_date64(kind):
        return scalar.value // 86_400_000
    if types.is_date32(kind):
        return scalar.value
    if types.is_interval(kind):
        return tuple(scalar.as_py())
    return scalar.as_py()
