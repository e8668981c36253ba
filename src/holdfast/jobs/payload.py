"""Check a payload before it meets SQL, and write it as JSON. Pure.

Postgres refuses NUL, lone surrogates and deep nesting with errors that do not name the culprit, and takes a payload of
any size. Here each gets a sentence that says what is wrong and what to do.
"""

from __future__ import annotations

import json
import json.encoder
import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import PayloadInvalid
from holdfast.jobs.given import wrong

LARGEST = 1_000_000  # bytes of JSON; more belongs into a file or a table, with its address in the payload
DEEPEST = 64

_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def to_json(value: Any, *, what: str = "payload", largest: int = LARGEST) -> str:
    """The JSON text of `value`, or `PayloadInvalid` with the reason and the way out."""
    try:
        text = _encode(value) if type(value) is dict else _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise PayloadInvalid(f"the {what} is not JSON: {error}; use plain dicts, lists, strings and numbers") from None
    except RecursionError:
        raise PayloadInvalid(_too_deep(what)) from None
    if len(text) > largest:  # ASCII only, so characters are bytes
        raise PayloadInvalid(
            f"the {what} has {len(text):,} bytes, the limit is {largest:,}; store it elsewhere and pass its address"
        )
    # Two cheap looks decide for nearly every payload that the two careful ones are not needed.
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise PayloadInvalid(_too_deep(what))
    if "\\u0000" in text or "\\ud" in text:
        _refuse_bad_characters(value, what)
    return text


def to_json_many(values: Sequence[dict[str, Any]], *, what: str = "payload") -> list[str]:
    """`to_json` of each, with one look at all of them together; only when that finds something, each is looked at."""
    try:
        texts = [_encode(value) for value in values]
    except (TypeError, ValueError, RecursionError):
        return [to_json(value, what=what) for value in values]
    together = "".join(texts)
    too_long = len(together) > LARGEST and max(map(len, texts)) > LARGEST
    may_be_deep = together.count("{") + together.count("[") - len(texts) >= DEEPEST
    if too_long or may_be_deep or "\\u0000" in together or "\\ud" in together:
        return [to_json(value, what=what) for value in values]
    return texts


def _make_encode() -> Callable[[Any], str]:
    """`_encoder.encode` for a dict. That makes its inner encoder anew for each call, which costs more than most payloads."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # a Python that is not written in C
        return _encoder.encode
    inner = make(None, _encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: "".join(inner(value, 0))


_encode = _make_encode()


def _too_deep(what: str) -> str:
    return f"the {what} is nested more than {DEEPEST} levels deep; flatten it"


def _depth(text: str) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def _refuse_bad_characters(value: Any, what: str) -> None:
    """Look at each string itself: in the JSON text an emoji is a pair of surrogates, too."""
    if isinstance(value, str):
        if "\x00" in value:
            raise PayloadInvalid(f"the {what} contains a NUL character, which Postgres cannot store; remove it")
        if _LONE_SURROGATE.search(value):
            raise PayloadInvalid(f"the {what} contains half of a surrogate pair, which is not text; decode it properly")
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_bad_characters(key, what)
            _refuse_bad_characters(item, what)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_bad_characters(item, what)


def storable(text: str, longest: int = 20_000) -> str:
    """An error message comes from anywhere: what Postgres cannot store in it must not keep us from noting it."""
    return text[:longest].replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def refuse_bad_text(value: str | None, what: str) -> None:
    """The same care for a key, a name or a message that goes into a text column."""
    if value is not None:
        if not isinstance(value, str):
            raise wrong(what, value, "it is text; use str(…)")
        _refuse_bad_characters(value, what)


def refuse_bad_word(actor: str, reason: str | None) -> None:
    """What an operator says of an act goes into its history."""
    refuse_bad_text(actor, "actor")
    refuse_bad_text(reason, "reason")
