"""A mapping as people write it: read from a file, checked as a whole, and brought about. The command line uses it, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from holdfast.errors import UsageError

KEYS: Final = ("name", "description", "engine", "nodes", "edges", "ttl", "inactivity_timeout")
LIFE: Final = ("ttl", "inactivity_timeout")

Said = dict[str, Any]


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def read_mapping(file: str | Path) -> Said:
    """The mapping in a YAML or JSON file."""
    yaml = import_module("yaml")
    try:
        return checked(yaml.safe_load(Path(file).read_text()), str(file))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        place = file if at is None else f"{file}, line {at.line + 1}, column {at.column + 1}"
        raise UsageError(f"{place} is neither YAML nor JSON: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # a date that no calendar has is a ValueError
        raise UsageError(f"{file} is neither YAML nor JSON: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError(f"{file} is nested too deeply, or contains itself; write it out") from None


def checked(said: Any, what: str) -> Said:
    """What is no mapping, or cannot be sent whole, is refused here; the rest is for the server to say. Pure."""
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or not isinstance(said.get("nodes"), list):
        raise UsageError(f"{what} must have a `name` and a list of `nodes`; `edges` are optional")
    unknown = [str(key) for key in said if key not in KEYS]
    if unknown:
        raise UsageError(f"{what} has {', '.join(unknown)}, which no mapping has; it may have: {', '.join(KEYS)}")
    for at, value in _unsendable(said, ""):
        raise UsageError(f"{what}{at} is {value!r} for YAML; put it in quotes to make it a text")
    return {**said, "edges": [] if said.get("edges") is None else said["edges"]}


def _unsendable(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """What JSON has no word for: YAML makes dates, bytes and sets by itself. Pure."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _unsendable(one, f"{at}/{key}") if isinstance(key, str) else [(f"{at}/{key}", key)]
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _unsendable(one, f"{at}/{number}")
    elif not isinstance(value, (str, int, float, type(None))) or (isinstance(value, float) and not math.isfinite(value)):
        yield at, value


# ---------------------------------------------------------------------------------------------------------------------
# Applying
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """The mapping as it is now, whether it is new, and else what is different from before."""

    mapping: dict[str, Any]
    is_new: bool
    changed: tuple[str, ...] = ()


def apply_mapping(get: Callable[..., Any], act: Callable[[str, str, Said], Any], said: Said, change: str) -> Applied:
    """Make one's own mapping of this name, or bring it up to date. Somebody else's of the same name is left alone.

    `get` and `act` are the ways to ask: a client's, or a command's. What is not said stays, but for edges: none are none.
    """
    me = get("/api/whoami")["actor"]
    there = get("/api/mappings", name=said["name"], owner=me, limit=1)
    if not there:
        return Applied(act("POST", "/api/mappings", said), is_new=True)
    before = there[0]
    _same_engine(before, said)
    life = {key: said.get(key, before[key]) for key in LIFE}
    differs = [key for key in LIFE if life[key] != before[key]]
    is_other_life = bool(differs)
    if is_other_life:  # it takes two acts, so all of it is checked before the first
        act("POST", "/api/mappings/check", {**said, "engine": before["engine"]})
    body = {"change_description": change, "nodes": said["nodes"], "edges": said["edges"]}
    if _text(said.get("description", before["description"])) != _text(before["description"]):
        body["description"] = _text(said["description"])
        differs.append("description")
    now = act("PUT", f"/api/mappings/{before['id']}", body)
    if now["version"] != before["current_version"]:
        differs.append("definitions")
    if is_other_life:
        now = {**now, **act("PUT", f"/api/mappings/{before['id']}/lifecycle", life)}
    return Applied(now, is_new=False, changed=tuple(differs))


def _text(description: Any) -> Any:
    """To a server null means that nothing is said; what is to be empty is an empty text. Pure."""
    return "" if description is None else description


def _same_engine(before: dict[str, Any], said: Said) -> None:
    wanted = said.get("engine") or before["engine"]
    if wanted != before["engine"]:
        raise UsageError(
            f"mapping {before['name']!r} is for {before['engine']}, and stays so; make one of another name for {wanted}"
        )
