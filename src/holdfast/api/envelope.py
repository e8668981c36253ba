"""The format of successful responses: `{"data": …}`, and for lists also the page."""

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
UNCHANGED = (304, "Not modified since `If-None-Match`")


class Data(BaseModel, Generic[T]):
    """One object."""

    data: T


class Total(BaseModel):
    """A count; `capped`: there are more."""

    value: int
    capped: bool


class PageInfo(BaseModel):
    """The position of this page in the list."""

    limit: int
    next_cursor: str | None
    total: Total | None = None


class Listed(BaseModel, Generic[T]):
    """A page of objects."""

    data: list[T]
    page: PageInfo


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of an action. `shown_once` is part of the response but never stored, so it cannot be replayed."""

    status: int
    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    shown_once: Mapping[str, Any] = field(default_factory=dict)


def jsonable(value: Any) -> Any:
    """Plain JSON values for dataclasses, named tuples and times."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, list):
        value = [item._asdict() if hasattr(item, "_asdict") else item for item in value]
    return to_jsonable_python(value)


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """One object in its envelope."""
    return JSONResponse({"data": jsonable(value)}, status, headers)


def etag_of(value: Any) -> str:
    """The ETag of a value."""
    return f'"{sha256(to_json(value)).hexdigest()[:32]}"'


def respond_tagged(request: Request, value: Any) -> Response:
    """One object with its ETag; 304 if the caller has it already."""
    plain = jsonable(value)
    tag = etag_of(plain)
    if tag in _tags(request.headers.get("if-none-match")):
        return Response(status_code=304, headers={"ETag": tag})
    return JSONResponse({"data": plain}, 200, {"ETag": tag})


def require_match(request: Request, tag: str) -> None:
    """Refuse a write whose If-Match does not have the current ETag. Without If-Match, the write is accepted."""
    given = request.headers.get("if-match")
    if given is not None and given.strip() != "*" and tag not in _tags(given):
        raise Problem(
            "changed-meanwhile", "the object has changed: If-Match does not have the current ETag", headers={"ETag": tag}
        )


def _tags(header: str | None) -> set[str]:
    return {part.strip().removeprefix("W/") for part in (header or "").split(",")}
