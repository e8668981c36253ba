"""What a handler takes, read from its signature: its context, a checker of its arguments, their JSON schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, Required, get_type_hints

import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from holdfast.errors import UsageError
from holdfast.worker.context import Context, SyncContext


class _Readable(GenerateJsonSchema):
    """Without titles, and with "anything" for what JSON schema cannot say: the worker checks that itself."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}


def argument_schema(checker: pydantic.TypeAdapter[dict[str, Any]] | None, signature: inspect.Signature) -> dict[str, Any]:
    """The JSON schema of a handler's arguments, with their defaults where JSON can say them."""
    if checker is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = checker.json_schema(schema_generator=_Readable)
    schema.pop("title", None)
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            try:
                schema["properties"][name] |= {"default": to_jsonable_python(parameter.default)}
            except PydanticSerializationError:
                continue
    return schema


def is_same_place(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether it is one module: perhaps read twice, as a script that is `__main__` and is imported under its name as well."""
    if one.__module__ == other.__module__:
        return True
    files = {getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None) for function in (one, other)}
    return len(files) == 1 and None not in files and "__main__" in (one.__module__, other.__module__)


def refuse_wrong_place(kind: str, function: Callable[..., Any], run_in: str | None, *, is_async: bool) -> None:
    """Where it cannot run is said when it is decorated, and not at its first job."""
    if run_in not in (None, "loop", "thread", "process"):
        raise UsageError(f"{kind}: run_in is 'loop', 'thread' or 'process', not {run_in!r}")
    if run_in == "loop" and not is_async:
        raise UsageError(f"{kind}: a plain function would block the event loop; make it async, or use run_in='thread'")
    if run_in == "thread" and is_async:
        raise UsageError(f"{kind}: an async function runs in the event loop; make it a plain one, or use run_in='process'")
    if run_in == "process" and "<locals>" in function.__qualname__:
        raise UsageError(f"{kind}: another process cannot import a function that is made inside another; move it to the module")


def split_signature(kind: str, function: Callable[..., Any], options: Collection[str]) -> tuple[str | None, inspect.Signature]:
    """The name of the context parameter, if there is one, and the signature without it."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    variable = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if variable:
        raise UsageError(f"{kind}: *{variable[0]} cannot be stored; name each argument")
    reserved = sorted({p.name for p in parameters} & set(options))
    if reserved:
        raise UsageError(f"{kind}: {', '.join(reserved)} is a word of enqueue; choose another name for the argument")
    hints = _hints(function)
    if parameters and hints.get(parameters[0].name) in (Context, SyncContext):
        return parameters[0].name, signature.replace(parameters=parameters[1:])
    return None, signature


def argument_checker(
    kind: str, function: Callable[..., Any], signature: inspect.Signature
) -> pydantic.TypeAdapter[dict[str, Any]] | None:
    """What turns a stored payload back into typed arguments; None if the function takes none."""
    if not signature.parameters:
        return None
    hints = _hints(function)
    shape = {
        name: Required[hints.get(name, Any)] if p.default is p.empty else hints.get(name, Any)
        for name, p in signature.parameters.items()
    }
    typed_dict: Any = TypedDict  # made at run time: no type checker can follow, and none has to
    arguments = typed_dict(f"{kind} arguments", shape, total=False)
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return pydantic.TypeAdapter(arguments)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:
        return {name: _hint(function, said) for name, said in function.__annotations__.items()}


def _hint(function: Callable[..., Any], said: Any) -> Any:
    """One annotation; a name that only the type checker sees leaves its argument unchecked at run time."""
    alone = type("alone", (), {"__annotations__": {"hint": said}})
    try:
        return get_type_hints(alone, globalns=function.__globals__)["hint"]
    except NameError:
        return Any


def first_problem(error: pydantic.ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}"
