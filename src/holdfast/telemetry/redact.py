"""Remove secrets and control characters from logs and traces. Called by: the log and the traces, for every value.

There are two mechanisms: known secret values (`hide`), in every encoding in which a library may print them, and patterns of
typical secrets. They are a safety net: do not log secrets.
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
SHORTEST = 6  # a shorter value would match too many harmless words
LONGEST = 20_000  # characters of one value; the middle of a longer one is left out
DEEPEST = 6

SECRET_NAME = re.compile(
    r"(?i)passw(or)?d|passphrase|secret|api[_-]?key|private[_-]?key|access[_-]?key|authorization|credential|cookie"
    r"|(?<!fence_)token(?!s)"
)
_NAMES = r"passw(?:or)?d|passphrase|secret|api[_-]?key|private[_-]?key|access[_-]?key|authorization|credential|(?<!fence_)token"

# Each pattern starts with fixed characters and has bounded repetitions, so the time is linear in the length of a hostile text.
# A pattern can only match if one of its words is in the lower-cased text; that check costs a twentieth of running all patterns.
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

# Names of fields that our own code writes; they contain no secrets.
OWN_FIELDS = frozenset(
    (
        *("event", "level", "timestamp", "logger", "exception", "stack", "error", "reason", "actor", "request_id"),
        *("job", "job_id", "attempt_id", "attempt", "kind", "worker", "worker_id", "pipeline_id"),
        *("method", "path", "status", "ms", "duration_seconds", "term", "trigger", "due_at"),
    )
)
# An actor such as `token:ada`: the name of a token is not a secret.
ACTOR_FIELDS = frozenset({"actor", "triggered_by", "paused_by"})
TOKEN_NAME = re.compile(r"(token:)([^\s:=]{1,200})")

_hidden: dict[str, None] = {}  # in the order of registration


def hide(*secrets: str | None) -> None:
    """Register secret values: from now on they are masked, in every known encoding."""
    for secret in secrets:
        if secret is None or len(secret) < SHORTEST:
            continue
        spellings = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
        _hidden.update(dict.fromkeys(sorted(spellings, key=len, reverse=True)))


def hidden() -> list[str]:
    """The registered values, for a child process that must mask the same."""
    return list(_hidden)


def text(value: str) -> str:
    """The text with secrets masked."""
    if len(value) > LONGEST:
        half = LONGEST // 2
        value = f"{value[:half]} … {len(value) - LONGEST:,} characters left out … {value[-half:]}"
    for secret in _hidden:
        if secret in value:
            value = value.replace(secret, HIDDEN)
    # Some letters match ASCII letters when case is ignored (ſ matches s), but `lower` does not change them.
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
    """Any value as plain data without secrets; other objects are converted with `str`."""
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
    """The fields of a log line, with secrets masked."""
    return {_name(name): _named(name, value, 0) for name, value in event.items()}


def escaped(value: str, *, but: Iterable[str] = ()) -> str:
    """Escape control characters, which could move the cursor of a terminal, change its colours or start another line."""
    if value.isprintable():
        return value
    kept = frozenset(but)
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in value)


def _name(name: str) -> str:
    return name if name in OWN_FIELDS else text(name)


def _named(name: str, value: Any, depth: int) -> Any:
    """Mask a value whose name indicates a secret, unless it is a number or None."""
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
    except Exception as error:  # foreign code: the line is logged even if a value cannot be printed
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"
