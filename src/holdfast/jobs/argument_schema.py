"""Check the arguments of a job against the JSON schema that its kind has published. Pure.

The schema is what pydantic makes of the handler's signature. It is compiled back into a pydantic validator, so no second
validation library is needed and a `pattern` cannot take exponential time. Keywords that pydantic does not emit are ignored:
an argument is never refused because of a keyword that is not understood here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from holdfast.errors import ArgumentProblem

Core = core_schema.CoreSchema
Schema = Mapping[str, Any]

FORMATS: dict[str, Callable[[], Core]] = {
    "uuid": core_schema.uuid_schema,
    "date": core_schema.date_schema,
    "date-time": core_schema.datetime_schema,
    "time": core_schema.time_schema,
    "duration": core_schema.timedelta_schema,
}
BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of"}
MOST_PROBLEMS = 20
LONGEST_VALUE = 100  # characters of a refused value that an error repeats


def problems_of(schema: Schema, arguments: Mapping[str, Any], what: str) -> list[ArgumentProblem]:
    """What is wrong with these arguments: one line for each field, with the value and what is expected. `what`: the kind."""
    try:
        compiled(schema).validate_python(dict(arguments))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[:MOST_PROBLEMS]
        return [_problem(cast("dict[str, Any]", one), schema, what) for one in found]
    return []


def compiled(schema: Schema, *, strict: bool = True) -> SchemaValidator:
    """The validator for a schema. `strict`: 7 is an integer; "7", 7.0 and true are not."""
    return _compiled(json.dumps(schema, sort_keys=True), strict)


@lru_cache(maxsize=1000)
def _compiled(text: str, strict: bool) -> SchemaValidator:
    schema = json.loads(text)
    for patterns in (True, False):  # Python's `re` accepts patterns that the linear-time engine does not
        try:
            return SchemaValidator(_Compiler(strict, patterns).whole(schema))
        except (SchemaError, TypeError, AttributeError):
            continue
    return SchemaValidator(core_schema.any_schema())  # a schema that cannot be compiled is left to the worker's check


def describe(schema: Any) -> str:
    """What a schema expects, in a few words."""
    if not isinstance(schema, Mapping):
        return "any value"
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(describe(one) for one in schema[union]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kind = schema.get("type", "any value")
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _problem(error: dict[str, Any], schema: Schema, what: str) -> ArgumentProblem:
    path = [str(part) for part in error["loc"]]
    field = ".".join(path) or "the payload"
    pointer = "".join(f"/{part}" for part in path)
    match error["type"]:
        case "missing":
            expected = describe(schema.get("properties", {}).get(path[0])) if len(path) == 1 else "a value"
            message = f"{field} is missing: expected {expected}"
        case "extra_forbidden":
            takes = ", ".join(schema.get("properties", {})) or "no arguments"
            message = (
                f"{field} is not an argument of {what}, which takes {takes}" if len(path) == 1 else f"{field} is not known"
            )
        case _:
            message = f"{field} cannot be {_shown(error['input'])}: {error['msg']}"
    return ArgumentProblem(pointer, message)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


class _Compiler(NamedTuple):
    """JSON schema to pydantic's own schema, keyword by keyword."""

    strict: bool
    patterns: bool

    def whole(self, schema: Schema) -> Core:
        definitions = [
            cast("Core", {**self.of(one), "ref": f"#/$defs/{name}"}) for name, one in schema.get("$defs", {}).items()
        ]
        return core_schema.definitions_schema(self.of(schema), definitions) if definitions else self.of(schema)

    def of(self, schema: Any) -> Core:
        if not isinstance(schema, Mapping):
            return core_schema.any_schema()
        if "$ref" in schema:
            return core_schema.definition_reference_schema(str(schema["$ref"]))
        if "const" in schema or "enum" in schema:
            allowed = schema.get("enum", [schema.get("const")])
            plain = all(isinstance(one, str | int | bool) or one is None for one in allowed)
            return core_schema.literal_schema(list(allowed)) if plain else core_schema.any_schema()
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union(schema[union])
        return self._typed(schema)

    def _union(self, choices: list[Any]) -> Core:
        others = [one for one in choices if not (isinstance(one, Mapping) and one.get("type") == "null")]
        if len(others) == 1 and len(choices) == 2:
            return core_schema.nullable_schema(self.of(others[0]))
        expected = " or ".join(dict.fromkeys(describe(one) for one in choices)).replace("{", "{{").replace("}", "}}")
        return core_schema.union_schema(
            [self.of(one) for one in choices], custom_error_type="union", custom_error_message=f"Input should be {expected}"
        )

    def _typed(self, schema: Schema) -> Core:
        match schema.get("type"):
            case "string":
                return self._string(schema)
            case "integer":
                return core_schema.int_schema(strict=self.strict, **self._bounds(schema))
            case "number":
                return core_schema.float_schema(strict=self.strict, allow_inf_nan=False, **self._bounds(schema))
            case "boolean":
                return core_schema.bool_schema(strict=self.strict)
            case "null":
                return core_schema.none_schema()
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
            case _:
                return core_schema.any_schema()

    def _bounds(self, schema: Schema) -> dict[str, Any]:
        return {ours: schema[theirs] for theirs, ours in BOUNDS.items() if theirs in schema}

    def _string(self, schema: Schema) -> Core:
        special = FORMATS.get(str(schema.get("format")))
        if special is not None:
            text = core_schema.str_schema(strict=self.strict)
            return core_schema.chain_schema([text, special()]) if self.strict else special()
        return core_schema.str_schema(
            strict=self.strict,
            min_length=schema.get("minLength"),
            max_length=schema.get("maxLength"),
            pattern=schema.get("pattern") if self.patterns else None,
        )

    def _array(self, schema: Schema) -> Core:
        least, most, first = schema.get("minItems"), schema.get("maxItems"), schema.get("prefixItems")
        if first and least == most == len(first):
            return core_schema.tuple_schema([self.of(one) for one in first])
        items = core_schema.any_schema() if first else self.of(schema.get("items"))
        return core_schema.list_schema(items, min_length=least, max_length=most)

    def _object(self, schema: Schema) -> Core:
        others = schema.get("additionalProperties", True)
        if "properties" not in schema and others is not False:
            return core_schema.dict_schema(core_schema.str_schema(), self.of(others))
        required = set(schema.get("required", ()))
        fields = {
            name: core_schema.typed_dict_field(self.of(one), required=name in required)
            for name, one in schema.get("properties", {}).items()
        }
        if others is False:
            return core_schema.typed_dict_schema(fields, extra_behavior="forbid")
        return core_schema.typed_dict_schema(fields, extra_behavior="allow", extras_schema=self.of(others))
