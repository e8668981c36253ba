"""What a handler takes, read from its signature: its context, a checker of its arguments, their JSON schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
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


def is_same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether `other` replaces `one`: its module was loaded again, perhaps as `__main__` and under its own name as well.

    A function inside another function is made at each call, so it may replace an earlier one.
    """
    local = "<locals>" in one.__qualname__ or "<locals>" in other.__qualname__
    if one.__qualname__ != other.__qualname__ and not local:
        return False
    if one.__module__ == other.__module__:
        return True
    files = {getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None) for function in (one, other)}
    return len(files) == 1 and None not in files and "__main__" in (one.__module__, other.__module__)


def refuse_no_handler(kind: str, function: object) -> None:
    """Refuse what a worker cannot call, or what does not end by returning: methods, generators, classes."""
    if inspect.isclass(function) or not callable(function) or not hasattr(function, "__qualname__"):
        raise UsageError(f"{kind}: a handler is a function, not {function!r}; decorate a `def` or `async def`")
    if isinstance(function, (staticmethod, classmethod)):
        raise UsageError(f"{kind}: {function.__qualname__} is a {type(function).__name__}; move the function out of the class")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{kind}: {function.__qualname__} is a generator, because it uses `yield`; return the result instead")
    scope = function.__qualname__.rpartition("<locals>.")[2]
    first = next(iter(inspect.signature(function).parameters), None)
    if "." in scope and first in ("self", "cls"):
        raise UsageError(
            f"{kind}: {scope} is a method, and a worker has no object to call it on; move the function out of the class"
        )


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


def split_signature(kind: str, function: Callable[..., Any]) -> tuple[str | None, inspect.Signature]:
    """The name of the context parameter, if there is one, and the signature without it."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    variable = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if variable:
        raise UsageError(f"{kind}: *{variable[0]} cannot be stored; name each argument")
    hints = _hints(function)
    _refuse_wrong_context(kind, function, parameters, hints)
    if parameters and hints.get(parameters[0].name) in (Context, SyncContext):
        return parameters[0].name, signature.replace(parameters=parameters[1:])
    return None, signature


def _refuse_wrong_context(
    kind: str, function: Callable[..., Any], parameters: list[inspect.Parameter], hints: Mapping[str, Any]
) -> None:
    wanted = "Context" if inspect.iscoroutinefunction(function) else "SyncContext"
    for position, parameter in enumerate(parameters):
        hint = hints.get(parameter.name, Any)
        if hint in (Context, SyncContext):
            if position > 0:
                raise UsageError(
                    f"{kind}: the context has to be the first parameter, not {parameter.name!r} in place {position + 1}"
                )
            if hint.__name__ != wanted:
                function_type = "an async" if wanted == "Context" else "a plain"
                raise UsageError(
                    f"{kind}: {function_type} function takes a {wanted}; annotate it as {parameter.name}: {wanted}"
                )
        elif parameter.name == "ctx" and hint is Any:
            raise UsageError(
                f"{kind}: the parameter ctx needs its type to be recognised as the context; write `ctx: holdfast.{wanted}`, "
                f"and import {wanted} at run time, not only under TYPE_CHECKING"
            )


def unknown_arguments(name: str, unknown: Sequence[str], arguments: Collection[str], options: Collection[str]) -> str:
    """What to do about keywords that the handler does not take: an option belongs to `using`, anything else is a mistake."""
    wrong = [each for each in unknown if each not in options]
    if not wrong:
        given = ", ".join(f"{option}=…" for option in unknown)
        return f"{', '.join(unknown)} is an option and no argument; use {name}.using({given})"
    there = f"the arguments are: {', '.join(sorted(arguments))}" if arguments else "it takes no arguments"
    return f"no argument {', '.join(map(repr, wrong))}; {there}; options of {name}.using(…) are: {', '.join(sorted(options))}"


def from_arguments(option: str, rule: Callable[..., Any], handler: inspect.Signature) -> Callable[..., Any]:
    """A function that makes a key, called with those arguments of the handler that it names."""
    try:
        parameters = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature: called with everything
        return rule
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return rule
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    unknown = [one.name for one in named if one.default is one.empty and one.name not in handler.parameters]
    positional = [one.name for one in named if one.kind is one.POSITIONAL_ONLY]
    if unknown or positional:
        there = ", ".join(handler.parameters) or "none"
        raise UsageError(
            f"the function for {option} takes {', '.join(unknown or positional)}; its parameters have to be arguments of the "
            f"handler, which are passed by name: {there}"
        )
    defaults = {name: one.default for name, one in handler.parameters.items() if one.default is not one.empty}
    names = [one.name for one in named if one.name in handler.parameters]

    def call(**arguments: Any) -> Any:
        given = defaults | arguments
        return rule(**{name: given[name] for name in names})

    return call


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
