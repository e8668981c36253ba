"""What a page gets and what it returns. A page is an async function `render(view) -> Shown`. Used by: every page.

`View` has the request, the caller and one connection; `Shown` names a template and its values. The frame around the page
(navigation, banners, theme) is the same for all and is not the page's concern.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import psycopg
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.plane import Plane, Principal, caller_of, plane_of
from holdfast.api.problems import Problem

LONGEST = 10_000  # characters of a value in the query
Later = Callable[[], Awaitable[Mapping[str, Any] | Response]]


@dataclass(frozen=True, slots=True)
class Shown:
    """A rendered page: its template, the values for it, and perhaps a more exact title than the page's.

    `later` reads more values after the connection is back in the pool, for what may take long, such as a query of another
    server. It may return a response in place of the page: a file to download.
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    later: Later | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One request of a page."""

    request: Request
    conn: psycopg.AsyncConnection[Any]
    now: datetime  # of the database

    @property
    def plane(self) -> Plane:
        return plane_of(self.request)

    @property
    def caller(self) -> Principal:
        return caller_of(self.request)

    def may(self, action: str) -> bool:
        """Whether the policy allows the caller this action, perhaps only for its own objects."""
        return self.caller.may(action)

    def given(self, name: str, default: str = "") -> str:
        """A value of the query."""
        return self.request.query_params.get(name, default)[:LONGEST]

    def number(self, name: str) -> int | None:
        """A number of the query, such as the place where a page begins; None without one."""
        text = self.given(name)
        if not text:
            return None
        if not text.isdecimal() or len(text) > 18:
            raise Problem("invalid-request", f"{name} must be a number, not {text!r}")
        return int(text)

    def path_number(self, name: str) -> int:
        """A number of the path, such as the id of a job."""
        text = str(self.request.path_params[name])
        if not text.isdecimal() or len(text) > 18 or int(text) == 0:
            raise Problem("not-found", f"there is nothing at {text!r}: it is not a number")
        return int(text)

    def link(self, path: str = "", **query: Any) -> str:
        """The address of a page of this console."""
        return link(self.request, path, **query)

    def here(self, **changed: Any) -> str:
        """The address of this page with other values in the query; None removes one."""
        query = {**dict(self.request.query_params), **changed}
        return self.link(own_path(self.request), **query)


Render = Callable[[View], Awaitable[Shown]]


def root_of(request: Request) -> str:
    """Where the console is mounted: `/console`, or what an application chose."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def own_path(request: Request) -> str:
    """The path of a request within the console, without a slash at its start."""
    return request.url.path.removeprefix(root_of(request)).lstrip("/")


def link(request: Request, path: str = "", **query: Any) -> str:
    """The address of a page of this console; values that are None or empty are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{root_of(request)}/{path}" + (f"?{urlencode(given)}" if given else "")


def absolute(request: Request, path: str) -> str:
    """The same with scheme and host, for a server that sends the browser back."""
    return f"{request.url.scheme}://{request.url.netloc}{link(request, path)}"
