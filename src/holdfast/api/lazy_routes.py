"""Routes that are built, or even imported, when a request needs them. Used by: `routes.py`, `worker_protocol.py`, `app.py`.

FastAPI takes about 3 ms of CPU to build a route: it makes a validator for each parameter and each model. A command line that
sends one request to the API in memory needs one of two hundred routes. Matching a path is cheap and needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send


class LazyRouter(APIRouter):
    """A router whose routes are built when a request matches their path."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        def build() -> BaseRoute:
            router = APIRouter(prefix=self.prefix, tags=self.tags, dependencies=self.dependencies, responses=self.responses)
            router.add_api_route(path, endpoint, **given)
            return router.routes[0]

        self.routes.append(LazyRoute(self.prefix + path, endpoint, given["methods"], build))


class LazyRoute(Route):
    """A route of FastAPI that is built when a request matches its path."""

    def __init__(self, path: str, endpoint: Callable[..., Any], methods: Iterable[str], build: Callable[[], BaseRoute]) -> None:
        super().__init__(path, endpoint)
        self.methods = set(methods)
        self._build = build

    @cached_property
    def built(self) -> BaseRoute:
        """The route of FastAPI."""
        return self._build()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return (match, found) if match is Match.NONE else self.built.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.built.handle(scope, receive, send)


class LazyGroup(BaseRoute):
    """Routes that are loaded when no route before them serves the request: the search for a route loads them."""

    def __init__(self, load: Callable[[], Sequence[BaseRoute]]) -> None:
        self._load = load

    @cached_property
    def routes(self) -> Sequence[BaseRoute]:
        """Its routes, loaded now."""
        return self._load()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The first route for the path and the method, else the first one for the path, as in a router."""
        best: tuple[Match, Scope] = Match.NONE, {}
        for route in self.routes:
            found = route.matches(scope)
            if found[0] is Match.FULL:
                return found
            if best[0] is Match.NONE:
                best = found
        return best

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["route"].handle(scope, receive, send)


def flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """These routes, with those of their groups."""
    for route in routes:
        if isinstance(route, LazyGroup):
            yield from route.routes
        else:
            yield route


def built(routes: Iterable[BaseRoute]) -> list[BaseRoute]:
    """These routes as routes of FastAPI, all loaded and built."""
    return [route.built if isinstance(route, LazyRoute) else route for route in flat(routes)]
