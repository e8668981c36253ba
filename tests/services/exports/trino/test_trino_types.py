"""Pages into columns: every type, both ways of reading, and whatever anybody may send."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.engines.port import EngineError, ProtocolBroken
from holdfast.engines.trino.decode import PageDecoder
from holdfast.engines.trino.messages import Answer, AnswerColumn, Spooled, read, read_columns
from holdfast.engines.trino.text import Unrepresentable
from trino_server import row_sig, sig

V = sig("varchar", 2147483647)


def decoder(*signatures: dict[str, Any]) -> PageDecoder:
    return PageDecoder(*read_columns([AnswerColumn(f"c{n}", "t", one) for n, one in enumerate(signatures)]))


def text(rows: Any) -> bytes:
    return json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()


def column(signature: dict[str, Any], *values: Any) -> pa.Array:
    """One column, read both ways: they must agree wherever the quick way reads it at all."""
    reads, page = decoder(signature), text([[value] for value in values])
    array = reads.decode(page).column(0)
    quick = reads._flat.columns(page) if reads._flat else None
    if quick is not None:
        (general,) = reads._nested.columns(page)
        assert str(quick[0]) == str(general) == str(array)
    return array


@pytest.mark.parametrize(
    ("signature", "arrow", "given_", "expected"),
    [
        (sig("boolean"), pa.bool_(), [True, False, None], [True, False, None]),
        (sig("tinyint"), pa.int8(), [-128, 127, None], [-128, 127, None]),
        (sig("smallint"), pa.int16(), [-32768, 32767], [-32768, 32767]),
        (sig("integer"), pa.int32(), [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
        (sig("bigint"), pa.int64(), [-(2**63), 2**63 - 1, None], [-(2**63), 2**63 - 1, None]),
        (sig("real"), pa.float32(), [1.5, "Infinity", None], [1.5, float("inf"), None]),
        (sig("double"), pa.float64(), [1e300, "-Infinity", 0.1], [1e300, float("-inf"), 0.1]),
        (sig("decimal", 38, 3), pa.decimal128(38, 3), ["9" * 35 + ".001", None], [Decimal("9" * 35 + ".001"), None]),
        (sig("char", 4), pa.string(), ["ab  ", "", None], ["ab  ", "", None]),
        (V, pa.string(), ["null", "", None, "é漢😀"], ["null", "", None, "é漢😀"]),
        (sig("varbinary"), pa.binary(), ["aGVsbG8=", "", None], [b"hello", b"", None]),
        (sig("date"), pa.date32(), ["0001-01-01", "9999-12-31", None], [date.min, date.max, None]),
        (sig("timestamp", 0), pa.timestamp("ms"), ["1969-12-31 23:59:59"], [datetime(1969, 12, 31, 23, 59, 59)]),  # noqa: DTZ001
        (
            sig("timestamp", 6),
            pa.timestamp("us"),
            ["9999-12-31 23:59:59.999999", None],
            [datetime(9999, 12, 31, 23, 59, 59, 999999), None],  # noqa: DTZ001
        ),
        (sig("interval day to second"), pa.string(), ["2 03:04:05.678"], ["2 03:04:05.678"]),
        (sig("interval year to month"), pa.string(), ["1-2"], ["1-2"]),
        (sig("time with time zone", 3), pa.string(), ["01:02:03.456+05:30"], ["01:02:03.456+05:30"]),
        (sig("uuid"), pa.string(), ["12151fd2-7586-11e9-8f9e-2a86e4085a59"], ["12151fd2-7586-11e9-8f9e-2a86e4085a59"]),
        (sig("ipaddress"), pa.string(), ["2001:db8::1"], ["2001:db8::1"]),
        (sig("json"), pa.string(), ['{"a":[1,"b\\n"]}'], ['{"a":[1,"b\\n"]}']),
        (sig("Geometry"), pa.string(), ["POINT (1 2)"], ["POINT (1 2)"]),
        (sig("SomethingNew"), pa.string(), [{"a": [1]}, None], ['{"a":[1]}', None]),
        (sig("unknown"), pa.null(), [None, None], [None, None]),
        (sig("array", sig("bigint")), pa.list_(pa.int64()), [[1, None], [], None], [[1, None], [], None]),
        (
            sig("map", sig("bigint"), sig("array", V)),
            pa.map_(pa.int64(), pa.list_(pa.string())),
            [{"1": ["a"], "2": None}, {}, None],
            [[(1, ["a"]), (2, None)], [], None],
        ),
        (
            row_sig(a=sig("date"), b=row_sig(c=sig("decimal", 5, 2))),
            pa.struct([("a", pa.date32()), ("b", pa.struct([("c", pa.decimal128(5, 2))]))]),
            [["2024-02-29", ["1.50"]], None, [None, None]],
            [{"a": date(2024, 2, 29), "b": {"c": Decimal("1.50")}}, None, {"a": None, "b": None}],
        ),
    ],
)
def test_every_type_becomes_what_it_is(signature: Any, arrow: pa.DataType, given_: list[Any], expected: list[Any]):
    array = column(signature, *given_)
    assert array.type == arrow
    assert array.to_pylist() == expected
    assert decoder(signature).decode(b"[]").column(0).type == arrow  # the same when there are no rows


@pytest.mark.parametrize("digits", range(13))
def test_times_and_timestamps_of_every_precision_keep_what_arrow_can_hold(digits: int):
    fraction = "123456789012"[:digits]
    printed = f"12:34:56{'.' if digits else ''}{fraction}"
    nanoseconds = int(fraction[:9].ljust(9, "0"))
    at = column(sig("timestamp", digits), f"1970-01-01 {printed}", None)
    assert at.cast(pa.timestamp("ns")).cast(pa.int64()).to_pylist() == [45296 * 10**9 + nanoseconds, None]
    zoned = column(sig("timestamp with time zone", digits), f"1970-01-01 {printed} Asia/Tokyo", None)
    assert zoned.type.tz == "UTC"
    assert zoned.cast(pa.timestamp("ns", "UTC")).cast(pa.int64())[0].as_py() == (45296 - 9 * 3600) * 10**9 + nanoseconds
    time = column(sig("time", digits), printed, None)
    assert time.cast(pa.time64("ns")).cast(pa.int64()).to_pylist() == [45296 * 10**9 + nanoseconds, None]


def test_instants_are_kept_whatever_zones_a_column_mixes():
    printed = ["2024-07-01 12:00:00.000 UTC", "2024-07-01 14:00:00.000 Europe/Berlin", "2024-07-01 03:30:00.000 -08:30", None]
    instants = column(sig("timestamp with time zone", 3), *printed).cast(pa.timestamp("ms")).to_pylist()
    assert instants == [datetime(2024, 7, 1, 12)] * 3 + [None]  # noqa: DTZ001


def test_an_hour_that_happened_twice_is_refused_with_what_to_do():
    with pytest.raises(Unrepresentable, match="AT TIME ZONE 'UTC'"):
        column(sig("timestamp with time zone", 0), "2024-10-27 02:30:00 Europe/Berlin")


def test_a_year_beyond_nanoseconds_is_refused():
    with pytest.raises(ProtocolBroken):
        column(sig("timestamp", 9), "9999-12-31 00:00:00.000000000")


@pytest.mark.parametrize(
    "tricky", ["],[", '"],["', "a\\", '\\"', "\n\r\t\b\f/", "\x01\x02\x1f", ",", "[[", "]]", "null", '\\n"']
)
def test_texts_that_look_like_the_page_around_them_stay_texts(tricky: str):
    assert column(V, tricky, f"x{tricky}y", tricky * 3).to_pylist() == [tricky, f"x{tricky}y", tricky * 3]


TEXTS = st.text(st.sampled_from('ab,[]{}"\\\n\t\r/\x01\x07é漢😀 nul') | st.characters(exclude_categories=["Cs"]))


@pytest.mark.more
@given(st.lists(st.tuples(TEXTS | st.none(), st.integers(-(2**63), 2**63 - 1) | st.none(), TEXTS, st.booleans() | st.none())))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_texts_and_numbers_come_back_as_they_were(rows: list[tuple[Any, ...]]):
    batch = decoder(V, sig("bigint"), V, sig("boolean")).decode(text(rows))
    assert list(zip(*(one.to_pylist() for one in batch.columns), strict=True)) == rows


@given(st.lists(st.floats(allow_nan=False)))
@settings(deadline=None)
def test_any_double_comes_back_as_it_was(values: list[float]):
    printed = [
        [repr(value).replace("inf", "Infinity") if value in (float("inf"), float("-inf")) else value] for value in values
    ]
    assert decoder(sig("double")).decode(text(printed)).column(0).to_pylist() == values


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ANY_BODY = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


@given(ANY_BODY | st.lists(st.lists(JSON, max_size=3), max_size=3).map(text))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_f_49_any_page_becomes_rows_or_a_protocol_error(page: bytes):
    for reads in (decoder(sig("bigint"), V), decoder(sig("array", sig("double"))), decoder(sig("timestamp with time zone", 3))):
        try:
            batch = reads.decode(page)
        except EngineError:
            continue
        batch.validate(full=True)


FIELDS = [
    "id",
    "nextUri",
    "columns",
    "data",
    "stats",
    "error",
    "name",
    "type",
    "typeSignature",
    "rawType",
    "arguments",
    "value",
]
ANSWERS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8).map(lambda value: json.dumps(value).encode())


@given(ANSWERS | ANY_BODY)
@settings(deadline=None)
def test_f_49_any_answer_is_read_or_a_protocol_error(body: bytes):
    for type_ in (Answer, Spooled):
        try:
            read(body, type_)
        except ProtocolBroken:
            continue


@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON | st.just([{"value": 3}] * 2), max_size=5))
@settings(deadline=None)
def test_f_49_any_signature_is_a_type_or_a_protocol_error(signature: Any):
    for raw in ("array", "map", "row", "decimal", "timestamp", "time", "bigint"):
        given_ = {**signature, "rawType": raw} if isinstance(signature, dict) else {"rawType": raw, "arguments": signature}
        try:
            read_columns([msgspec.convert({"name": "a", "type": "b", "typeSignature": given_}, AnswerColumn)])
        except ProtocolBroken:
            continue
