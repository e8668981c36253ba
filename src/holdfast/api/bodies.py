"""Text, reasons and bodies of requests. Without a web framework, and without pydantic until that asks for the rules: a command
without a server validates its few values itself (`cli/certain.py`), and importing pydantic takes longer than the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from typing import Annotated, Any, get_type_hints


class Rule:
    """A rule for the values of a type, in `Annotated`: limits with the names that pydantic's `Field` has, or a check.

    pydantic reads it as a group of metadata of the package annotated-types, which the attribute below declares.
    """

    __is_annotated_types_grouped_metadata__ = True

    def __init__(self, check: Callable[[str], str] | None = None, **limits: Any) -> None:
        self.check, self.limits = check, limits

    def __iter__(self) -> Iterator[Any]:
        pydantic = import_module("pydantic")
        yield pydantic.Field(**self.limits) if self.check is None else pydantic.AfterValidator(self.check)


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a NUL character cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate is not valid text") from None
    return text


BIGGEST_ID = 2**63 - 1024  # the largest bigint that a JSON number in the OpenAPI document represents exactly
JobNumber = Annotated[int, Rule(ge=1, le=BIGGEST_ID)]
Small = Annotated[int, Rule(ge=1, le=1000)]
Flag = Annotated[bool, Rule(strict=True)]
Text = Annotated[str, Rule(_storable)]  # text that Postgres can store
WHY = "The reason; it is recorded in the audit log."
Reason = Annotated[Text, Rule(min_length=1, max_length=500, description=WHY)]


class Body:
    """The body of a change, as a dataclass; unknown fields are refused. Requests are validated by a model of pydantic."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        core_schema = import_module("pydantic_core.core_schema")
        return core_schema.no_info_after_validator_function(lambda valid: cls(**dict(valid)), handler(model_of(source)))


@cache
def model_of(body: Any) -> Any:
    """The model of pydantic with the name, the description and the fields of this body."""
    types = get_type_hints(body, include_extras=True)
    given = {one.name: (types[one.name], ... if one.default is MISSING else one.default) for one in fields(body)}
    make = import_module("pydantic").create_model
    return make(body.__name__, __config__={"extra": "forbid"}, __doc__=body.__doc__, __module__=body.__module__, **given)


@dataclass(frozen=True)
class Because(Body):
    """The body of an action that needs only a reason."""

    reason: Reason
