"""Read a mapping from a file, check it, and apply it. Used by the client and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.errors import UsageError
from holdfast.extras import loaded

KEYS: Final = ("name", "description", "engine", "nodes", "edges", "ttl", "inactivity_timeout")
LIFE: Final = ("ttl", "inactivity_timeout")

Given = dict[str, Any]


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def read_mapping(file: str | Path) -> Given:
    """The mapping in a YAML or JSON file."""
    yaml = loaded("yaml", extra="client")
    try:
        return checked(yaml.safe_load(Path(file).read_text()), str(file))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        place = file if at is None else f"{file}, line {at.line + 1}, column {at.column + 1}"
        raise UsageError(f"{place} is neither YAML nor JSON: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # an invalid date is a ValueError
        raise UsageError(f"{file} is neither YAML nor JSON: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError(f"{file} is nested too deeply, or contains itself") from None


def checked(given: Any, what: str) -> Given:
    """Refuse what is not a mapping or cannot be sent as JSON; the server checks the rest. Pure."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not isinstance(given.get("nodes"), list):
        raise UsageError(f"{what} must have a `name` and a list of `nodes`; `edges` are optional")
    unknown = [str(key) for key in given if key not in KEYS]
    if unknown:
        raise UsageError(f"{what} has unknown keys: {', '.join(unknown)}; allowed keys: {', '.join(KEYS)}")
    for at, value in _unsendable(given, ""):
        raise UsageError(f"{what}{at} is {value!r} in YAML; quote it to make it text")
    return {**given, "edges": [] if given.get("edges") is None else given["edges"]}


def _unsendable(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Values that JSON does not have: YAML makes dates, bytes and sets. Pure."""
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
    """The mapping as it is now, whether it is new, and if not, what changed."""

    mapping: dict[str, Any]
    is_new: bool
    changed: tuple[str, ...] = ()


def apply_mapping(get: Callable[..., Any], act: Callable[[str, str, Given], Any], given: Given, change: str) -> Applied:
    """Create or update the caller's mapping of this name. A mapping of another owner with the same name is not touched.

    `get` and `act` send requests: those of a client, or of a command. Fields that are not given stay, except edges.
    """
    me = get("/api/whoami")["actor"]
    there = get("/api/mappings", name=given["name"], owner=me, limit=1)
    if not there:
        return Applied(act("POST", "/api/mappings", given), is_new=True)
    before = there[0]
    _same_engine(before, given)
    life = {key: given.get(key, before[key]) for key in LIFE}
    differs = [key for key in LIFE if life[key] != before[key]]
    is_other_life = bool(differs)
    if is_other_life:  # two requests are needed, so everything is checked before the first
        act("POST", "/api/mappings/check", {**given, "engine": before["engine"]})
    body = {"change_description": change, "nodes": given["nodes"], "edges": given["edges"]}
    if _text(given.get("description", before["description"])) != _text(before["description"]):
        body["description"] = _text(given["description"])
        differs.append("description")
    now = act("PUT", f"/api/mappings/{before['id']}", body)
    if now["version"] != before["current_version"]:
        differs.append("definitions")
    if is_other_life:
        now = {**now, **act("PUT", f"/api/mappings/{before['id']}/lifecycle", life)}
    return Applied(now, is_new=False, changed=tuple(differs))


def _text(description: Any) -> Any:
    """The API reads null as not given; an empty description is an empty text. Pure."""
    return "" if description is None else description


def _same_engine(before: dict[str, Any], given: Given) -> None:
    wanted = given.get("engine") or before["engine"]
    if wanted != before["engine"]:
        raise UsageError(
            f"mapping {before['name']!r} is for {before['engine']}, and the engine cannot change; use another name for {wanted}"
        )
