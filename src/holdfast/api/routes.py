"""Declare a route: its path, its action, its responses and its problems. Only declared routes are served.

Without a web framework: `guarded.py` serves the routes, and the command line finds the handler of a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.api.policy import POLICY
from holdfast.api.problem_types import PROBLEMS

if TYPE_CHECKING:
    from starlette.responses import Response

    from holdfast.api.answers import Answer

Handler = Callable[..., "Coroutine[Any, Any, Response]"]
Changing = Callable[..., "Coroutine[Any, Any, Answer]"]
PROBLEM_JSON = "application/problem+json"
PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
EVERY_ROUTE = ("invalid-request", "internal", "database-unavailable", "unreadable")
EVERY_GUARDED_ROUTE = ("unauthenticated", "forbidden", "rate-limited")
EVERY_WRITE = ("too-large", "busy", "unsupported-media-type")


def refusals(slugs: Iterable[str]) -> dict[int | str, dict[str, Any]]:
    """Problems as OpenAPI wants them, by status. Pure."""
    found: dict[int | str, dict[str, Any]] = {}
    for slug in slugs:
        empty = {"content": {PROBLEM_JSON: {"schema": PROBLEM_SCHEMA}}, "description": ""}
        entry = found.setdefault(PROBLEMS[slug].status, empty)
        entry["description"] = ", ".join(filter(None, (entry["description"], f"`{slug}`")))
    return found


@dataclass(frozen=True, slots=True)
class Route:
    """One declared route."""

    method: str
    path: str
    action: str
    handler: Handler | Changing
    status: int
    answers: Any
    refuses: tuple[str, ...]
    alias_of: str | None = None
    media: str = "application/json"
    others: tuple[tuple[int, str], ...] = ()  # further statuses that are not errors
    any_query: bool = False  # its handler reads the query by itself
    streams_body: bool = False  # its handler reads the body by itself, piece by piece, and limits its size
    is_change: bool = False  # its handler takes a `Change` and returns an `Answer`; `answers` is the type of the data

    @property
    def statuses(self) -> set[int]:
        """Every status that it may answer with."""
        return {self.status, *(status for status, _ in self.others), *(PROBLEMS[slug].status for slug in self._refusals())}

    def _refusals(self) -> tuple[str, ...]:
        guarded = () if POLICY[self.action].anyone else EVERY_GUARDED_ROUTE
        writes = () if self.method == "GET" else EVERY_WRITE
        return (*EVERY_ROUTE, *guarded, *writes, *self.refuses)

    def responses(self, model: Any) -> dict[int | str, dict[str, Any]]:
        """The answers as OpenAPI wants them; `model` is that of the envelope."""
        found = refusals(self._refusals())
        if model is not None:
            found[self.status] = {"model": model, "description": "Done"}
        elif self.media != "application/json":
            found[self.status] = {"content": {self.media: {"schema": {"type": "string"}}}, "description": "Done"}
        return found | {status: {"description": says} for status, says in self.others}


class Routes:
    """The routes of one noun."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.declared: list[Route] = []

    def add(
        self,
        method: str,
        path: str,
        *,
        action: str,
        status: int = 200,
        answers: Any = None,
        refuses: Sequence[str] = (),
        also: Sequence[str] = (),
        media: str = "application/json",
        others: Sequence[tuple[int, str]] = (),
        any_query: bool = False,
        streams_body: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare a route; `also` are other paths for the same, served as they are written and never redirected.

        Query parameters that the handler does not declare are refused, unless `any_query` is set. With `streams_body` the
        handler reads `request.stream()` and limits the size, as for an upload that is larger than memory.
        """

        def declare(handler: Handler) -> Handler:
            route = Route(
                *(method, path, action, handler, status, answers, tuple(refuses)),
                media=media,
                others=tuple(others),
                any_query=any_query,
                streams_body=streams_body,
            )
            self.declared += [route, *(replace(route, path=alias, alias_of=path) for alias in also)]
            return handler

        return declare

    def change(
        self,
        method: str,
        path: str,
        *,
        action: str,
        answers: Any,
        status: int = 200,
        refuses: Sequence[str] = (),
        also: Sequence[str] = (),
    ) -> Callable[[Changing], Changing]:
        """Declare a route whose handler knows no web framework, so that the command line can call it without a server.

        The handler takes a `Change`, the variable parts of the path by name, and the body as `asked`. It returns an `Answer`.
        """

        def declare(handler: Changing) -> Changing:
            route = Route(*(method, path, action, handler, status, answers, tuple(refuses)), is_change=True)
            self.declared += [route, *(replace(route, path=alias, alias_of=path) for alias in also)]
            return handler

        return declare

    def include(self, others: Routes) -> None:
        """Serve the routes of a module without a web framework with these."""
        self.declared += others.declared
