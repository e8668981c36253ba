"""Payloads are validated before SQL; each refusal names the value and the fix."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from holdfast.errors import PayloadInvalid
from holdfast.jobs.payload import DEEPEST, LARGEST, refuse_bad_text, to_json, to_json_many


def nested(levels: int) -> Any:
    value: Any = "core"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


REFUSED = {
    "a NUL in a value": ({"a": "x\x00y"}, "NUL character"),
    "a NUL in a key": ({"a\x00": 1}, "NUL character"),
    "a NUL deep inside": ({"a": [{"b": ("c", "\x00")}]}, "NUL character"),
    "a lone high surrogate": ({"a": "\ud800"}, "a lone surrogate"),
    "a lone low surrogate": ({"a": ["\udfff"]}, "a lone surrogate"),
    "not a number": ({"a": math.nan}, "not JSON"),
    "infinity": ({"a": math.inf}, "not JSON"),
    "a set": ({"a": {1}}, "plain dicts, lists, strings and numbers"),
    "bytes": ({"a": b"x"}, "plain dicts, lists, strings and numbers"),
    "one level too many": (nested(DEEPEST + 1), f"more than {DEEPEST} levels"),
    "deeper than Python can follow": (nested(100_000), f"more than {DEEPEST} levels"),
    "too large": ("x" * LARGEST, "store it elsewhere and pass its address"),
}


@pytest.mark.parametrize(("payload", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_value_that_postgres_cannot_store_is_refused_by_name(payload: Any, message: str) -> None:
    with pytest.raises(PayloadInvalid, match=message):
        to_json(payload)


ACCEPTED: dict[str, Any] = {
    "an emoji, which JSON writes as a pair of surrogates": {"a": "\N{GRINNING FACE}"},
    "a backslash before a u": {"a": "\\u0000 and \\ud800, spelled out"},
    "control characters": {"a": "\x01\x1f\t\n\r"},
    "as deep as allowed": nested(DEEPEST),
    "wide but flat": [{"a": [index]} for index in range(1000)],
    "brackets inside of strings": ["[" * 1000, '"{' * 1000],
    "big whole numbers": {"a": 2**200},
    "nothing": None,
}


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_other_values_are_returned_unchanged(payload: Any) -> None:
    assert json.loads(to_json(payload)) == payload


def test_a_payload_of_exactly_the_limit_is_accepted() -> None:
    assert len(to_json("x" * (LARGEST - 2))) == LARGEST


def test_the_limit_counts_bytes_and_not_characters() -> None:
    with pytest.raises(PayloadInvalid, match="62 bytes"):
        to_json("é" * 10, largest=20)  # 6 bytes each as JSON, and the quotes


def test_message_names_what_was_checked() -> None:
    with pytest.raises(PayloadInvalid, match="the handle contains a NUL"):
        to_json("\x00", what="handle")


@pytest.mark.parametrize("text", ["a\x00b", "\udc00"])
def test_text_columns_are_checked_like_payloads(text: str) -> None:
    with pytest.raises(PayloadInvalid, match="the message contains"):
        refuse_bad_text(text, "message")


def test_none_is_accepted_as_text() -> None:
    refuse_bad_text(None, "message")


@pytest.mark.parametrize(("payload", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_bulk_refuses_an_invalid_payload_like_a_single_one(payload: Any, message: str) -> None:
    with pytest.raises(PayloadInvalid, match=message):
        to_json_many([{"fine": 1}, {"payload": payload}, {"fine": 2}])


def test_bulk_writes_payloads_like_single_ones() -> None:
    odd = [{"a": "é😀\n"}, {"b": [1, 2.5, None, True]}, nested(DEEPEST), {}]
    payloads = [*odd, *({"deep": nested(3)} for _ in range(DEEPEST))]

    assert to_json_many(payloads) == [to_json(payload) for payload in payloads]
