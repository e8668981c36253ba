"""Key templates: keys that contain arguments of the job, such as `"invoice:{invoice_id}"`. Pure.

A template is data, so it can be published and used wherever a job is enqueued: in Python, over HTTP and on the command line.
Equal values give the same key, however they are written: 7 and "7" for an integer, and a UUID in upper or lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, to_jsonable_python

from holdfast.errors import UsageError
from holdfast.jobs.argument_schema import compiled, describe

TEXTLESS = frozenset({"number", "array", "object", "null"})  # JSON types without a single canonical text
MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The text of one argument."""

    name: str
    default: Any
    read: SchemaValidator

    def of(self, payload: Mapping[str, Any]) -> str:
        value = payload.get(self.name, self.default)
        if value is MISSING:
            raise UsageError(f"{self.name} is missing, and a key needs it")
        try:
            plain = to_jsonable_python(self.read.validate_python(value))
        except ValidationError as error:
            raise UsageError(f"{self.name} cannot be {value!r} in a key: {error.errors()[0]['msg']}") from None
        if isinstance(plain, bool):
            return "true" if plain else "false"
        if isinstance(plain, str | int):
            return str(plain)
        raise UsageError(f"{self.name} cannot be {value!r} in a key: a key is made of text, whole numbers, dates and UUIDs")


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key with `{argument}` in it; `{{` and `}}` stand for braces."""

    text: str
    parts: tuple[str | Placeholder, ...] = field(repr=False)

    def of(self, payload: Mapping[str, Any]) -> str:
        """The key of a job with these arguments, as they are stored."""
        return "".join(part if isinstance(part, str) else part.of(payload) for part in self.parts)


def key_template(text: str, schema: Mapping[str, Any] | None) -> KeyTemplate:
    """A template for arguments of this schema; `UsageError` for an unknown argument or one without a canonical text."""
    if not isinstance(text, str) or not text:
        raise UsageError(f"a key template cannot be {text!r}: must be text, like 'invoice:{{invoice_id}}'")
    parts: list[str | Placeholder] = []
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            if literal:
                parts.append(literal)
            if name is not None:
                parts.append(_placeholder(text, name, bool(spec or conversion), schema))
    except ValueError as error:
        raise UsageError(f"the key template {text!r} is invalid: {error}; write {{{{ and }}}} for braces") from None
    return KeyTemplate(text, tuple(parts))


def _placeholder(text: str, name: str, formatted: bool, schema: Mapping[str, Any] | None) -> Placeholder:
    if not name.isidentifier() or formatted:
        raise UsageError(f"the key template {text!r} may contain only names of arguments, like {{invoice_id}}, not {{{name}}}")
    if schema is None:
        return Placeholder(name, MISSING, compiled({}))
    properties = schema.get("properties", {})
    if name not in properties:
        takes = ", ".join(properties) or "no arguments"
        raise UsageError(f"the key template {text!r} names {name}, but the function takes {takes}")
    said = properties[name]
    if said.get("type") in TEXTLESS:
        raise UsageError(
            f"the key template {text!r} names {name}, which is {describe(said)}: a key is made of text, whole numbers, dates "
            "and UUIDs; use a function instead"
        )
    default = said.get("default", MISSING)
    if default is MISSING and name not in schema.get("required", ()):
        raise UsageError(f"the key template {text!r} names {name}, whose default cannot be written as JSON; use a function")
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return Placeholder(name, default, compiled({**said, **definitions}, strict=False))
