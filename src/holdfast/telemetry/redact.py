"""Keep secrets and control characters out of what is written about us. Called by: the log and the traces, for every value.

Two nets: values that are known to be secret (`hide`), in every spelling that a library may print them in, and patterns of
what usually is one. Neither is a reason to log a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import PurePath
from typing import Any
from urllib.parse import quote
from uuid import UUID

HIDDEN = "***"
SHORTEST = 6  # a known value that is shorter stands in too many innocent words
LONGEST = 20_000  # characters of one value; the middle of a longer one is left out
DEEPEST = 6

SECRET_NAME = re.compile(
    r"(?i)passw(or)?d|passphrase|secret|api[_-]?key|private[_-]?key|access[_-]?key|authorization|credential|cookie"
    r"|(?<!fence_)token(?!s)"
)
_NAMES = r"passw(?:or)?d|passphrase|secret|api[_-]?key|private[_-]?key|access[_-]?key|authorization|credential|(?<!fence_)token"

# Each begins with fixed characters and repeats within bounds: a hostile text costs time in proportion to its length.
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"(://[^\s/:@]{0,200}):[^\s@/]{1,500}@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s{1,5}[a-z0-9._~+/=-]{6,4000}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bhf_[a-z0-9]{1,20}_[A-Za-z0-9_-]{6,200}"), f"hf_{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{5,2000}\.[\w-]{5,8000}\.[\w-]{0,2000}"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"(?i)([?&](?:sig|signature|key|x-amz-signature|x-goog-signature)=)[^&\s]{1,2000}"), rf"\1{HIDDEN}"),
    (
        re.compile(
            rf"(?i)((?:{_NAMES})[\w-]{{0,40}}[\"']?\s{{0,5}}[=:]\s{{0,5}})"
            r"(?:\"[^\"]{1,2000}\"|'[^']{1,2000}'|(?!\*\*\*)[^\s,;&\"'}\])]{1,2000})"
        ),
        rf"\1{HIDDEN}",
    ),
)

_hidden: dict[str, None] = {}  # in the order in which they became known


def hide(*secrets: str | None) -> None:
    """From now on these values are never written, in no spelling that we know of."""
    for secret in secrets:
        if secret is None or len(secret) < SHORTEST:
            continue
        spellings = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
        _hidden.update(dict.fromkeys(sorted(spellings, key=len, reverse=True)))


def hidden() -> list[str]:
    """What was hidden so far, for a process that must hide the same."""
    return list(_hidden)


def text(value: str) -> str:
    """The text without what must not be read."""
    if len(value) > LONGEST:
        half = LONGEST // 2
        value = f"{value[:half]} … {len(value) - LONGEST:,} characters left out … {value[-half:]}"
    for secret in _hidden:
        if secret in value:
            value = value.replace(secret, HIDDEN)
    for pattern, instead in PATTERNS:
        value = pattern.sub(instead, value)
    return value


def clean(value: Any, depth: int = 0) -> Any:
    """Any value as plain data without secrets: what is not plain already is what it says of itself."""
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth < DEEPEST and isinstance(value, Mapping):
        return {text(str(name)): _named(str(name), inner, depth) for name, inner in value.items()}
    if depth < DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [clean(inner, depth + 1) for inner in value]
    return text(_said_of_itself(value))


def fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a log line, each clean."""
    return {text(name): _named(name, value, 0) for name, value in event.items()}


def escaped(value: str, *, but: Iterable[str] = ()) -> str:
    """For a terminal: whatever could move its cursor, change its colours or begin another line is spelt out."""
    if value.isprintable():
        return value
    kept = frozenset(but)
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in value)


def _named(name: str, value: Any, depth: int) -> Any:
    """A value under a name that says secret is one, unless it is a number or nothing."""
    if value is not None and not isinstance(value, (bool, int, float)) and SECRET_NAME.search(name):
        return HIDDEN
    return clean(value, depth + 1)


def _said_of_itself(value: Any) -> str:
    try:
        return str(value) if isinstance(value, (BaseException, UUID, date, timedelta, PurePath)) else repr(value)
    except Exception as error:  # foreign code: what cannot be printed must not cost the line
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"
