"""Validate payloads and write them as JSON. Pure.

Postgres rejects NUL, lone surrogates and deep nesting with errors that do not name the value, and accepts payloads of any
size. These checks run first, and their errors say what is wrong and how to fix it.
"""

from __future__ import annotations

import json
import json.encoder
import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import PayloadInvalid
from holdfast.jobs.given import wrong

LARGEST = 1_000_000  # bytes of JSON; store larger data in a file or a table, and its address in the payload
DEEPEST = 64

_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def to_json(value: Any, *, what: str = "payload", largest: int = LARGEST) -> str:
    """The JSON text of `value`; `PayloadInvalid` if it cannot be stored."""
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
    # Two cheap tests show for nearly every payload that the two expensive checks are not needed.
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise PayloadInvalid(_too_deep(what))
    if "\\u0000" in text or "\\ud" in text:
        _refuse_bad_characters(value, what)
    return text


def to_json_many(values: Sequence[dict[str, Any]], *, what: str = "payload") -> list[str]:
    """`to_json` of each. All are checked together first; only if that finds a problem, each is checked by itself."""
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
    """`_encoder.encode` for a dict, with a cached inner encoder: to create it for each call costs more than most payloads."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # Python without the C accelerator
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
    """Check each decoded string, because in the JSON text an emoji is also a pair of surrogates."""
    if isinstance(value, str):
        if "\x00" in value:
            raise PayloadInvalid(f"the {what} contains a NUL character, which Postgres cannot store; remove it")
        if _LONE_SURROGATE.search(value):
            raise PayloadInvalid(f"the {what} contains a lone surrogate, which is not valid text; decode it correctly")
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_bad_characters(key, what)
            _refuse_bad_characters(item, what)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_bad_characters(item, what)


def storable(text: str, longest: int = 20_000) -> str:
    """Replace what Postgres cannot store: error messages come from foreign code, and must always be recorded."""
    return text[:longest].replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def refuse_bad_text(value: str | None, what: str) -> None:
    """The same checks for a key, a name or a message that goes into a text column."""
    if value is None:
        return
    if not isinstance(value, str):
        raise wrong(what, value, "must be text; use str(…)")
    if "\x00" in value or not value.isascii():
        _refuse_bad_characters(value, what)


def refuse_bad_word(actor: str, reason: str | None) -> None:
    """Check the actor and the reason of an operator's action: both are written to the history."""
    refuse_bad_text(actor, "actor")
    refuse_bad_text(reason, "reason")
