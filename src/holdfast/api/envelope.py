"""The form of every good answer: `{"data": …}`, and for lists the page beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.api.problems import Problem

T = TypeVar("T")
UNCHANGED = (304, "It is still what `If-None-Match` names")


class Data(BaseModel, Generic[T]):
    """One thing."""

    data: T


class Total(BaseModel):
    """How many there are; `capped` says that there are more than that."""

    value: int
    capped: bool


class PageInfo(BaseModel):
    """Where in a list this page is."""

    limit: int
    next_cursor: str | None
    total: Total | None = None


class Listed(BaseModel, Generic[T]):
    """A page of things."""

    data: list[T]
    page: PageInfo


@dataclass(frozen=True, slots=True)
class Answer:
    """What an act answers. `shown_once` is part of the answer but never stored, so that it cannot be replayed."""

    status: int
    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    shown_once: Mapping[str, Any] = field(default_factory=dict)


def jsonable(value: Any) -> Any:
    """Plain JSON values of whatever we have: dataclasses, named tuples, times."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, list):
        value = [item._asdict() if hasattr(item, "_asdict") else item for item in value]
    return to_jsonable_python(value)


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """One thing in its envelope."""
    return JSONResponse({"data": jsonable(value)}, status, headers)


def etag_of(value: Any) -> str:
    """A tag that changes whenever the value does."""
    return f'"{sha256(to_json(value)).hexdigest()[:32]}"'


def respond_tagged(request: Request, value: Any) -> Response:
    """One thing with its tag; nothing but the tag if the caller has it already."""
    plain = jsonable(value)
    tag = etag_of(plain)
    if tag in _tags(request.headers.get("if-none-match")):
        return Response(status_code=304, headers={"ETag": tag})
    return JSONResponse({"data": plain}, 200, {"ETag": tag})


def require_match(request: Request, tag: str) -> None:
    """Refuse a write by somebody who has not seen the thing as it is now; who sends no If-Match does not care."""
    given = request.headers.get("if-match")
    if given is not None and given.strip() != "*" and tag not in _tags(given):
        raise Problem("changed-meanwhile", "what If-Match names is not what is there now", headers={"ETag": tag})


def _tags(header: str | None) -> set[str]:
    return {part.strip().removeprefix("W/") for part in (header or "").split(",")}
