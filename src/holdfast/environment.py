"""Read settings from the environment, and explain an invalid value in one line. Used by: settings, and starters of programs.

A setting is `HOLDFAST_<NAME>`. Two more kinds of names may set it, both declared at the field with `names`:
- standard names, such as AWS_REGION, which the tools of a vendor use; they always count;
- compatibility names, such as LOG_LEVEL, which count only with HOLDFAST_COMPATIBILITY_NAMES=true: a name without a prefix may
  mean something else to another program in the same environment.
`HOLDFAST_<NAME>` counts more than either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

PREFIX = "HOLDFAST_"
# Variables of other systems that Holdfast needs no value of. They are accepted, and `holdfast config explain` says why.
WITHOUT_EFFECT = {"GCP_PROJECT": "the credentials of Google Cloud name the project"}
SWITCH = f"{PREFIX}COMPATIBILITY_NAMES"
HIDDEN = "***"


def names(*compatibility: str, standard: tuple[str, ...] = (), default: str | None = None) -> dict[str, Any]:
    """For `json_schema_extra` of a field: the other environment variables that set it.

    `default` replaces the default of the field while compatibility names are switched on.
    """
    return {"compatibility_names": compatibility, "standard_names": standard, "compatibility_default": default}


def variable(field: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{field.upper()}"


def standard_names(field: FieldInfo) -> tuple[str, ...]:
    """The names of a vendor's tools that set this field."""
    return tuple(_extra(field).get("standard_names", ()))


def compatibility_names(field: FieldInfo) -> tuple[str, ...]:
    """The names that set this field when compatibility names are switched on."""
    return tuple(_extra(field).get("compatibility_names", ()))


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def compatibility_default(field: FieldInfo) -> Any:
    """The default of this field when compatibility names are switched on, if it differs."""
    return _extra(field).get("compatibility_default")


def passed_on(*, named: tuple[str, ...], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables of this process that a child process gets: those with these names or prefixes, and no others."""
    return {name: value for name, value in os.environ.items() if name in named or name.startswith(prefixes)}


class OwnNames(EnvSettingsSource):
    """The variables `HOLDFAST_<NAME>`. The type of a field is examined only if its variable is set: that takes longer than all
    the rest, and few variables are set."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if variable(field_name).lower() not in self.env_vars:
            return None, field_name, False
        return super().get_field_value(field, field_name)

    def prepare_field_value(self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool) -> Any:
        return None if value is None else super().prepare_field_value(field_name, field, value, value_is_complex)


class OtherNames(PydanticBaseSettingsSource):
    """The standard names and, if they are switched on, the compatibility names and defaults."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        found = set_by(field_name, field)
        if found is None:
            return (compatibility_default(field) if is_switched_on() else None), field_name, False
        return os.environ[found], field_name, False

    def __call__(self) -> dict[str, Any]:
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


def set_by(name: str, field: FieldInfo) -> str | None:
    """Which other variable sets this field, if any."""
    others = (*standard_names(field), *(compatibility_names(field) if is_switched_on() else ()))
    return next((other for other in others if other in os.environ), None)


def variables() -> dict[str, str]:
    """Every variable of this process."""
    return dict(os.environ)


def is_switched_on() -> bool:
    """Whether compatibility names count."""
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "on", "t", "y")  # any other value is refused or false


# ---------------------------------------------------------------------------------------------------------------------
# Invalid values
# ---------------------------------------------------------------------------------------------------------------------

EXPECTED = {
    "bool_parsing": "use true or false",
    "bool_type": "use true or false",
    "int_parsing": "use a whole number",
    "int_from_float": "use a whole number",
    "float_parsing": "use a number",
    "finite_number": "use a finite number",
    "dict_type": 'use a JSON object, such as {"key": "value"}',
}


def explained(settings: type[BaseSettings], error: Exception) -> str:
    """Why the settings cannot be read: for each value its variable, the value, and what is allowed."""
    if isinstance(error, ValidationError):
        return "; ".join(_explained(settings, error))
    found = re.search(r'field "(\w+)"', str(error))  # pydantic-settings could not parse JSON
    if found is None:
        return str(error)
    name = found[1]
    shown = os.environ.get(variable(name), "")
    return f"{variable(name)}={shown} is not valid: {EXPECTED['dict_type']}"


def _explained(settings: type[BaseSettings], error: ValidationError) -> Iterator[str]:
    for one in error.errors():
        name = str(one["loc"][0]) if one["loc"] else ""
        field = settings.model_fields.get(name)
        if field is None:
            yield f"{name or 'settings'}: {_plain(one['msg'])}"
            continue
        own = variable(name)
        shown = HIDDEN if _is_secret(field) else str(one["input"])
        at = "".join(f"[{part}]" for part in one["loc"][1:])
        yield f"{own if own in os.environ else set_by(name, field) or own}{at}={shown} is not valid: {_allowed(one)}"


def _allowed(one: Any) -> str:
    context = one.get("ctx", {})
    if one["type"] == "literal_error":
        return f"use {context['expected'].replace(chr(39), '')}"
    return EXPECTED.get(one["type"], _plain(one["msg"]))


def _plain(message: str) -> str:
    return message.replace("Input should be", "it must be").replace("Value error, ", "").replace("Input should", "it must")


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))
