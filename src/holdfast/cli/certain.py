"""Values that are certainly valid for the types of a handler, without pydantic. Used by: `writes.py`.

These rules accept less than the API does and never more. Everything else raises `NotHandled`, and the API in memory decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from holdfast.api.bodies import Body, Rule
from holdfast.cli.reads.values import NotHandled

LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": lambda value, limit: value >= limit,
    "le": lambda value, limit: value <= limit,
    "min_length": lambda value, limit: len(value) >= limit,
    "max_length": lambda value, limit: len(value) <= limit,
    "strict": lambda _, __: True,  # no value of another type is accepted below
    "description": lambda _, __: True,
}


def valid(kind: Any, value: Any) -> Any:
    """The value as this type, or `NotHandled`. Pure."""
    if get_origin(kind) is Annotated:
        kind, *rules = get_args(kind)
        return obeying(rules, valid(kind, value))
    if get_origin(kind) in (Union, UnionType):
        others = [one for one in get_args(kind) if one is not NoneType]
        if value is None and len(others) < len(get_args(kind)):
            return None
        if len(others) == 1:
            return valid(others[0], value)
    if kind in (str, int, bool) and type(value) is kind:
        return value
    if isinstance(value, str):
        return of_text(kind, value)
    if isinstance(kind, type) and issubclass(kind, Body) and isinstance(value, Mapping):
        return body(kind, value)
    raise NotHandled


def of_text(kind: Any, text: str) -> int | UUID:
    """A part of a path that is a number or an id, as Holdfast itself writes them."""
    if kind is int and text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    try:
        if kind is UUID and str(found := UUID(text)) == text:
            return found
    except ValueError:
        pass
    raise NotHandled


def body(kind: Any, given: Mapping[str, Any]) -> Any:
    """The body with these fields: no unknown ones, and all that are required."""
    types = get_type_hints(kind, include_extras=True)
    required = {one.name for one in fields(kind) if one.default is MISSING}
    if not required <= given.keys() <= types.keys():
        raise NotHandled
    return kind(**{name: valid(types[name], value) for name, value in given.items()})


def obeying(rules: list[Any], value: Any) -> Any:
    """The value, if it obeys all rules."""
    for rule in rules:
        if not isinstance(rule, Rule) or not rule.limits.keys() <= LIMITS.keys():
            raise NotHandled
        if not all(LIMITS[name](value, limit) for name, limit in rule.limits.items()):
            raise NotHandled
        try:
            value = value if rule.check is None else rule.check(value)
        except ValueError:
            raise NotHandled from None
    return value
