"""Options and arguments whose values need no validation. Used by: the command line, for every command that it loads.

Typer makes a pydantic validator for each parameter, given or not. That imports pydantic, and takes a quarter of the time in
which a command starts. Most parameters are texts, have their default, or are not given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class AsGiven:
    """In the place of Typer's validator, which is made when a value needs it."""

    annotation: Any

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        if self.annotation == list[str] and isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            return list(value)
        if not is_list and is_plain(self.annotation) and isinstance(value, self.annotation):
            return value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def is_plain(annotation: Any) -> bool:
    """Whether every value of this type is valid. What users write is a text; a value of another type is the default. Pure."""
    return isinstance(annotation, type) and (annotation in (str, int, float) or issubclass(annotation, Enum))


def validate_when_needed(command: Any, ctx: Any) -> None:
    """Make the validators of this command, and of those below it, when a value needs one."""
    for param in command.get_params(ctx):
        described = getattr(param, "type_descriptor", None)  # missing in other versions of Typer, which work without this
        if described is not None and described.parameter_info.parser is None and described.file_annotation is None:
            param._runtime_param = AsGiven(described.annotation)
    for below in getattr(command, "commands", {}).values():
        validate_when_needed(below, ctx)
