"""The format of successful responses: `{"data": …}`, and for lists also the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.api.answers import Answer, etag_of, jsonable, require_match, tags

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


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """One object in its envelope."""
    return JSONResponse({"data": jsonable(value)}, status, headers)


def respond_with(answer: Answer) -> Response:
    """The answer of an action in its envelope."""
    return JSONResponse({"data": answer.data}, answer.status, answer.headers)


def respond_tagged(request: Request, value: Any) -> Response:
    """One object with its ETag; 304 if the caller has it already."""
    plain = jsonable(value)
    tag = etag_of(plain)
    if tag in tags(request.headers.get("if-none-match")):
        return Response(status_code=304, headers={"ETag": tag})
    return JSONResponse({"data": plain}, 200, {"ETag": tag})


__all__ = [
    "UNCHANGED",
    "Answer",
    "Data",
    "Listed",
    "PageInfo",
    "Total",
    "etag_of",
    "jsonable",
    "require_match",
    "respond",
    "respond_tagged",
    "respond_with",
]
