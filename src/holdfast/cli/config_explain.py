"""`holdfast config explain`: the value of each setting, where it comes from, and which variables are not read. Pure but for the
environment that is passed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from holdfast.environment import (
    PREFIX,
    SWITCH,
    WITHOUT_EFFECT,
    compatibility_default,
    compatibility_names,
    is_switched_on,
    set_by,
    variable,
)
from holdfast.intervals import INTERVAL
from holdfast.settings import Settings

# Settings that another one replaces: the setting, the other one, and the property with the value that counts.
REPLACED = {
    "lease_seconds": ("stale_job_timeout_minutes", "lease"),
    "grace_seconds": ("termination_grace_seconds", "grace"),
}


def explained(given: Settings, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting with its value and its origin, then the variables that are set and not read."""
    return [*_settings(given, environment), *_not_read(given, environment)]


def _settings(given: Settings, environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, field in type(given).model_fields.items():
        value, origin = _value(given, name, field, environment)
        default = None if field.default_factory else field.default
        meaning = field.description or ""
        yield {"variable": variable(name), "value": value, "origin": origin, "default": default, "meaning": meaning}


def _value(given: Settings, name: str, field: FieldInfo, environment: Mapping[str, str]) -> tuple[Any, str]:
    value = getattr(given, name)
    if variable(name) in environment:
        return value, variable(name)
    if (other := set_by(name, field)) is not None:
        return value, other
    if name in REPLACED:
        replacement, effective = REPLACED[name]
        if getattr(given, replacement) is not None:
            return getattr(given, effective), _value(given, replacement, type(given).model_fields[replacement], environment)[1]
    if name.endswith(INTERVAL) and (interval := given.intervals.get(name.removesuffix(INTERVAL))) is not None:
        return interval.total_seconds(), f"preset {given.job_interval_preset}"
    if is_switched_on() and compatibility_default(field) is not None:
        return value, f"default with {SWITCH}"
    return value, "default"


def _not_read(given: Settings, environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Variables that look as if they were settings."""
    fields = type(given).model_fields
    known = {variable(name) for name in fields}
    for name in sorted(name for name in environment if name.startswith(PREFIX) and name not in known):
        yield _unread(name, "not read: there is no such setting")
    if not is_switched_on():
        others = {name for field in fields.values() for name in compatibility_names(field)}
        for name in sorted(others & set(environment) - {"HOSTNAME"}):
            yield _unread(name, f"not read: set {SWITCH}=true")
    for name in sorted(set(WITHOUT_EFFECT) & set(environment)):
        yield _unread(name, f"no effect: {WITHOUT_EFFECT[name]}")


def _unread(name: str, origin: str) -> dict[str, Any]:
    return {"variable": name, "value": None, "origin": origin, "default": None, "meaning": ""}
