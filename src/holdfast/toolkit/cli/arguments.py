"""Parse what users write on a command line: ids, filters, payloads."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast.errors import NotFound, UsageError
from holdfast.toolkit.cli.times import length
from holdfast.toolkit.cli.verb import Session

LATEST = "@latest"
FILTERS = (
    *("state", "kind", "queue", "condition", "pipeline_id", "worker_id", "slot_key", "parent_id", "fingerprint"),
    *("created_after", "created_before", "age"),
)
AGES = {"<": "created_after", ">": "created_before"}


def job_id_of(session: Session, text: str) -> int:
    """The id of a job: a number, `job/7` as `-o name` prints it, or @latest."""
    if text == LATEST:
        newest = session.listed("/api/jobs", most=1)
        if not newest:
            raise NotFound("there are no jobs yet")
        return int(newest[0]["id"])
    return number_of(text, "job", f"pass a number or {LATEST}")


def number_of(text: str, noun: str, advice: str | None = None) -> int:
    """The number of an object: `7`, or `<noun>/7` as `-o name` prints it. Pure."""
    word = text.removeprefix(f"{noun}/")
    if not (word.isascii() and word.isdecimal()):  # int() also takes other digits
        raise UsageError(f"{text!r} is not a {noun} id; {advice or f'`holdfast {noun} list` shows the ids'}")
    return int(word)


def uuid_of(text: str, noun: str) -> str:
    """The UUID of an object, or `<noun>/<uuid>` as `-o name` prints it. Pure."""
    try:
        return str(UUID(text.removeprefix(f"{noun}/")))
    except ValueError:
        raise UsageError(f"{text!r} is not a {noun} id; `holdfast {noun} list` shows the ids") from None


def filters_of(session: Session, text: str | None) -> dict[str, str]:
    """A filter as users write it: `state:failed kind:exports.run age:>1h`. Ages are by the server's clock."""
    found = {}
    for word in (text or "").split():
        name, colon, value = word.partition(":")
        if not colon or not value or name not in FILTERS:
            raise UsageError(f"{word!r} is not a filter; write name:value, with one of these names: {', '.join(FILTERS)}")
        if name == "age":
            name, value = _by_age(session, value)
        found[name] = value
    return found


def _by_age(session: Session, value: str) -> tuple[str, str]:
    if value[0] not in AGES:
        raise UsageError(f"{value!r} is not an age; write age:>1h for older than an hour, age:<1h for younger")
    return AGES[value[0]], (session.transport.now() - length(value[1:])).isoformat()


def payload_of(words: Sequence[str]) -> dict[str, Any]:
    """A payload out of `key=text`, `key:=json`, JSON objects and files; later words override earlier ones."""
    payload: dict[str, Any] = {}
    for word in words:
        payload |= _part(word)
    return payload


def _part(word: str) -> dict[str, Any]:
    if word.startswith("@"):
        return _object(sys.stdin.read() if word == "@-" else _read(Path(word[1:])), word)
    if word.lstrip().startswith("{"):
        return _object(word, "the payload")
    name, equals, value = word.partition("=")
    if not equals or not name.rstrip(":"):
        raise UsageError(f"{word!r} is not part of a payload; write key=text, key:=json, a JSON object, or @file.json")
    if not name.endswith(":"):
        return {name: value}
    try:
        return {name[:-1]: json.loads(value)}
    except ValueError as error:
        raise UsageError(f"{value!r} is not valid JSON ({error}); for text write {name[:-1]}={value}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f'{where} is not valid JSON ({error}); write an object such as {{"count": 7}}') from None
    if not isinstance(found, dict):
        raise UsageError(f"{where} is not a JSON object; a payload maps names to values")
    return found
