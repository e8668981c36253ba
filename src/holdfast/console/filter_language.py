"""The filter language of the job list: `state:failed kind:exports.run age:<24h timeout`. Pure.

The names are those of the API's filters. `age:` is a time relative to now: `age:<1h` is younger, `age:>1h` is older. Words
without a colon are a text search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from holdfast.api.problems import Problem
from holdfast.errors import UsageError
from holdfast.jobs.states import State
from holdfast.jobs.views.filters import MOST_IDS, Condition
from holdfast.toolkit.cli.times import length

NAMES: Final = {
    "id": "ids",
    "ids": "ids",
    "state": "state",
    "kind": "kind",
    "queue": "queue",
    "cond": "condition",
    "condition": "condition",
    "pipeline": "pipeline_id",
    "pipeline_id": "pipeline_id",
    "worker": "worker_id",
    "worker_id": "worker_id",
    "slot": "slot_key",
    "slot_key": "slot_key",
    "parent": "parent_id",
    "parent_id": "parent_id",
    "fingerprint": "fingerprint",
    "created_after": "created_after",
    "created_before": "created_before",
}
SHOWN: Final = ("id", "state", "kind", "queue", "cond", "age", "pipeline", "worker", "slot", "parent", "fingerprint")
CHOICES: Final = {"state": tuple(map(str, State)), "cond": tuple(map(str, Condition)), "age": ("<1h", "<24h", ">1h", ">24h")}
LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter: its text, normalised, and the values for the query."""

    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def has(self, word: str) -> bool:
        return word in self.text.split()


def parse(text: str, now: datetime) -> Filter:
    """Parse a filter, or a problem that names the mistake."""
    if len(text) > LONGEST:
        raise Problem("invalid-request", f"a filter has at most {LONGEST:,} characters, not {len(text):,}")
    found: dict[str, Any] = {}
    words = []
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon:
            words.append(word)
            continue
        if not value:
            raise Problem("invalid-request", f"{word!r} has no value; write {name}:value")
        if name == "age":
            _set(found, *_age(value, now))
        elif name in NAMES:
            _set(found, NAMES[name], value)
        else:
            raise Problem("invalid-request", f"there is no filter {name!r}; there are: {', '.join(SHOWN)}")
    if words:
        found["q"] = " ".join(words)
    _check(found)
    return Filter(" ".join(text.split()), found)


def _set(found: dict[str, Any], name: str, value: Any) -> None:
    if name in found:
        raise Problem("invalid-request", f"{name} is given twice; a job has only one")
    found[name] = value


def _age(value: str, now: datetime) -> tuple[str, str]:
    if value[0] not in "<>":
        raise Problem("invalid-request", f"age:{value} needs a direction: age:<{value} is younger, age:>{value} is older")
    try:
        since = now - length(value[1:])
    except (UsageError, OverflowError) as error:
        raise Problem("invalid-request", str(error)) from None
    return ("created_after" if value[0] == "<" else "created_before"), since.isoformat()


def _check(found: Mapping[str, Any]) -> None:
    for name, allowed in (("state", CHOICES["state"]), ("condition", CHOICES["cond"])):
        if name in found and found[name] not in allowed:
            raise Problem("invalid-request", f"no {name} {found[name]!r}; there are: {', '.join(allowed)}")
    ids = found.get("ids", "1").split(",")
    if len(ids) > MOST_IDS or not all(_is_id(one) for one in ids):
        raise Problem("invalid-request", f"id must be up to {MOST_IDS} numbers of jobs with commas between them: id:7,9")
    if "parent_id" in found and not _is_id(found["parent_id"]):
        raise Problem("invalid-request", f"parent must be the number of a job, not {found['parent_id']!r}")


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0


def for_query(found: Filter) -> dict[str, Any]:
    """The values for the statements, with their types. Pure."""
    typed = dict(found.values)
    if "ids" in typed:
        typed["ids"] = [int(one) for one in typed["ids"].split(",")]
    if "parent_id" in typed:
        typed["parent_id"] = int(typed["parent_id"])
    return typed


def toggled(text: str, word: str) -> str:
    """The filter with this word, in place of another of the same name; without it, if it was there. Pure."""
    words, name = text.split(), word.partition(":")[0]
    if word in words:
        return " ".join(one for one in words if one != word)
    return " ".join([*(one for one in words if one.partition(":")[0] != name), word])


def suggestions(kinds: Iterable[str]) -> list[str]:
    """Words that complete a filter: names with every value, where the values are known. Pure."""
    known = {**CHOICES, "kind": tuple(kinds)}
    return [
        *(f"{name}:{value}" for name, values in known.items() for value in values),
        *(f"{name}:" for name in SHOWN if name not in known),
    ]
