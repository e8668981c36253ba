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

# Each begins with fixed characters and repeats within bounds: a hostile text costs time in proportion to its length. A pattern
# matches only where one of its words is, in small letters; looking for those costs a twentieth of running all the patterns.
PATTERNS: tuple[tuple[re.Pattern[str], str, tuple[str, ...]], ...] = (
    (
        re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL),
        HIDDEN,
        ("-----begin",),
    ),
    (re.compile(r"(://[^\s/:@]{0,200}):[^\s@/]{1,500}@"), rf"\1:{HIDDEN}@", ("://",)),
    (re.compile(r"(?i)\b(bearer|basic)\s{1,5}[a-z0-9._~+/=-]{6,4000}"), rf"\1 {HIDDEN}", ("bearer", "basic")),
    (re.compile(r"\bhf_[a-z0-9]{1,20}_[A-Za-z0-9_-]{6,200}"), f"hf_{HIDDEN}", ("hf_",)),
    (re.compile(r"\beyJ[\w-]{5,2000}\.[\w-]{5,8000}\.[\w-]{0,2000}"), HIDDEN, ("eyj",)),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN, ("akia", "asia")),
    (
        re.compile(r"(?i)([?&](?:sig|signature|key|x-amz-signature|x-goog-signature)=)[^&\s]{1,2000}"),
        rf"\1{HIDDEN}",
        ("sig=", "signature=", "key="),
    ),
    (
        re.compile(
            rf"(?i)((?:{_NAMES})[\w-]{{0,40}}[\"']?\s{{0,5}}[=:]\s{{0,5}})"
            r"(?:\"[^\"]{1,2000}\"|'[^']{1,2000}'|(?!\*\*\*)[^\s,;&\"'}\])]{1,2000})"
        ),
        rf"\1{HIDDEN}",
        ("passw", "passphrase", "secret", "key", "authorization", "credential", "token"),
    ),
)

ANY_WORD = re.compile("|".join(re.escape(word) for _, _, words in PATTERNS for word in words))

# Names of fields that our own code writes: there is nothing to look for in them.
OWN_FIELDS = frozenset(
    (
        *("event", "level", "timestamp", "logger", "exception", "stack", "error", "reason", "actor", "request_id"),
        *("job", "job_id", "attempt_id", "attempt", "kind", "worker", "worker_id", "pipeline_id"),
        *("method", "path", "status", "ms", "duration_seconds", "term", "trigger", "due_at"),
    )
)
# Who did something, as `token:ada`: the name of a token is no secret.
ACTOR_FIELDS = frozenset({"actor", "triggered_by", "paused_by"})
TOKEN_NAME = re.compile(r"(token:)([^\s:=]{1,200})")

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
    # Other alphabets have letters that count as one of ours in any case (ſ as s), and that `lower` leaves as they are.
    if value.isascii():
        lower = value.lower()
        if ANY_WORD.search(lower) is None:
            return value
        found = [(pattern, instead) for pattern, instead, words in PATTERNS if any(word in lower for word in words)]
    else:
        found = [(pattern, instead) for pattern, instead, _ in PATTERNS]
    for pattern, instead in found:
        value = pattern.sub(instead, value)
    return value


def clean(value: Any, depth: int = 0) -> Any:
    """Any value as plain data without secrets: what is not plain already is what it says of itself."""
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth < DEEPEST and isinstance(value, Mapping):
        return {_name(str(name)): _named(str(name), inner, depth) for name, inner in value.items()}
    if depth < DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [clean(inner, depth + 1) for inner in value]
    return text(_said_of_itself(value))


def fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a log line, each clean."""
    return {_name(name): _named(name, value, 0) for name, value in event.items()}


def escaped(value: str, *, but: Iterable[str] = ()) -> str:
    """For a terminal: whatever could move its cursor, change its colours or begin another line is spelt out."""
    if value.isprintable():
        return value
    kept = frozenset(but)
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in value)


def _name(name: str) -> str:
    return name if name in OWN_FIELDS else text(name)


def _named(name: str, value: Any, depth: int) -> Any:
    """A value under a name that says secret is one, unless it is a number or nothing."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if name not in OWN_FIELDS and SECRET_NAME.search(name):
        return HIDDEN
    if name in ACTOR_FIELDS and isinstance(value, str) and (actor := TOKEN_NAME.fullmatch(value)):
        return actor[1] + text(actor[2])
    return clean(value, depth + 1)


def _said_of_itself(value: Any) -> str:
    try:
        return str(value) if isinstance(value, (BaseException, UUID, date, timedelta, PurePath)) else repr(value)
    except Exception as error:  # foreign code: what cannot be printed must not cost the line
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"
