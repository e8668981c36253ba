"""What people write on a command line, as what the API wants: ids, filters, payloads."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.times import length
from holdfast.cli.verb import Session
from holdfast.errors import NotFound, UsageError

LATEST = "@latest"
FILTERS = (
    *("state", "kind", "queue", "condition", "pipeline_id", "worker_id", "slot_key", "parent_id", "fingerprint"),
    *("created_after", "created_before", "age"),
)
AGES = {"<": "created_after", ">": "created_before"}


def job_id_of(session: Session, text: str) -> int:
    """The job that a word names: its number, `job/7` as `-o name` writes it, or @latest."""
    if text == LATEST:
        newest = session.listed("/api/jobs", most=1)
        if not newest:
            raise NotFound("there is no job yet")
        return int(newest[0]["id"])
    number = text.removeprefix("job/")
    if not number.isdecimal():
        raise UsageError(f"{text!r} is no job's number; write a number or {LATEST}")
    return int(number)


def filters_of(session: Session, text: str | None) -> dict[str, str]:
    """A filter as people write it: `state:failed kind:export age:>1h`. Ages are by the clock over there."""
    found = {}
    for word in (text or "").split():
        name, colon, value = word.partition(":")
        if not colon or not value or name not in FILTERS:
            raise UsageError(f"{word!r} is no filter; write name:value with one of: {', '.join(FILTERS)}")
        if name == "age":
            name, value = _by_age(session, value)
        found[name] = value
    return found


def _by_age(session: Session, value: str) -> tuple[str, str]:
    if value[0] not in AGES:
        raise UsageError(f"{value!r} is no age; write age:>1h for what is older than an hour, age:<1h for what is younger")
    return AGES[value[0]], (session.way.now() - length(value[1:])).isoformat()


def payload_of(words: Sequence[str]) -> dict[str, Any]:
    """A payload out of `key=text`, `key:=json`, whole objects and files, the later over the earlier."""
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
        raise UsageError(f"{word!r} is no part of a payload; write key=text, key:=json, a JSON object, or @file.json")
    if not name.endswith(":"):
        return {name: value}
    try:
        return {name[:-1]: json.loads(value)}
    except ValueError as error:
        raise UsageError(f"{value!r} is no JSON ({error}); for text write {name[:-1]}={value}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{where} is no JSON object: a payload has names")
    return found
