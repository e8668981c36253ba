"""Serve declared routes, each behind its guard: the caller is authenticated, rate-limited and authorised before the body is
read."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cache
from typing import Any, cast

from fastapi import Request, Response, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from holdfast.api import audit, auth, limits
from holdfast.api.acts import Act, Acting
from holdfast.api.change import Change
from holdfast.api.envelope import Data, respond_with
from holdfast.api.lazy_routes import LazyRouter
from holdfast.api.plane import NOBODY, Principal, plane_of
from holdfast.api.policy import POLICY
from holdfast.api.problems import Problem
from holdfast.api.routes import Handler, Route, Routes

JSON_MEDIA = re.compile(r"\s*application/([\w.-]+\+)?json\s*(;|$)", re.IGNORECASE)


class Guarded(APIRoute):
    """A route behind its guard."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        extra = self.openapi_extra or {}
        action, takes_json = extra["x-action"], self.body_field is not None
        allowed = None if extra.get("x-any-query") else query_names(self.dependant)

        async def guarded(request: Request) -> Response:
            request.state.action = action
            request.state.caller = await guard(request, action)
            if allowed is not None:
                refuse_unknown_query(request.query_params, allowed)
            if extra.get("x-streams-body"):
                return await handle(request)
            bounded = await limits.with_bounded_body(request, plane_of(request).options.largest_body)
            if takes_json:
                refuse_other_media(request)
            return await handle(bounded)

        return guarded


def query_names(dependant: Dependant) -> list[str]:
    """The query parameters that a route declares, with those of its dependencies."""
    return sorted({field.alias for field in get_flat_params(dependant) if isinstance(field.field_info, params.Query)})


def refuse_unknown_query(given: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuse parameters that the route does not declare: a filter with a typing error would be ignored."""
    unknown = sorted(set(given).difference(allowed))
    if unknown:
        message = (
            f"unknown query parameter; allowed: {', '.join(allowed)}" if allowed else "this path takes no query parameters"
        )
        found = [{"pointer": f"/query/{name}", "message": message} for name in unknown[:20]]
        raise Problem("invalid-request", f"/query/{unknown[0]}: {message}", errors=found, allowed=list(allowed))


def refuse_other_media(request: Request) -> None:
    """Refuse a body that is not declared as JSON."""
    given = request.headers.get("content-type", "")
    if request.state.body and not JSON_MEDIA.match(given):
        found = f"Content-Type is {given.partition(';')[0][:100]!r}" if given else "Content-Type is missing"
        raise Problem("unsupported-media-type", f"{found}; send the body as JSON, with `Content-Type: application/json`")


async def guard(request: Request, action: str) -> Principal:
    """The caller, if it is authorised; otherwise a problem, and an audit entry."""
    plane = plane_of(request)
    if POLICY[action].anyone or (action == "metrics.read" and plane.options.metrics_open):
        return NOBODY
    if action == "openapi.read" and plane.options.docs_open:
        return NOBODY
    shown = await auth.shown_by(request, plane)
    async with plane.pool.connection() as conn:
        try:
            caller = await auth.identified(conn, shown)
        except auth.Unknown as unknown:
            if unknown.was is not None:
                await audit.write(conn, unknown.was, action, request.url.path, request=request, outcome="denied")
            raise
        await limits.spend(conn, caller, plane.options)
        if not caller.may(action):
            await audit.write(conn, caller, action, request.url.path, request=request, outcome="denied")
            raise forbidden(caller, action)
    return caller


def forbidden(caller: Principal, action: str) -> Problem:
    rule = POLICY[action]
    who = f"the role {caller.role}" if caller.role else "a caller without a role"
    return Problem("forbidden", f"{who} may not {rule.says}", required_roles=sorted(rule.roles | rule.own), action=action)


def served(nouns: Iterable[Routes]) -> list[BaseRoute]:
    """The routes of these nouns as an app serves them."""
    found: list[BaseRoute] = []
    for noun in nouns:
        for route in noun.declared:
            assert route.action in POLICY, f"{route.method} {route.path}: the action {route.action} has no rule"
        found += _router(noun).routes
    return found


@cache
def _router(noun: Routes) -> LazyRouter:
    """Made once for all apps of a process: building a route takes milliseconds, and a route finds its app in the request."""
    router = LazyRouter(redirect_slashes=False)
    for route in noun.declared:
        _serve(router, noun.noun, route)
    return router


def endpoint_of(route: Route) -> Handler:
    """The handler as FastAPI calls it: a `Change` comes from the request, and its answer becomes the response."""
    handler: Any = route.handler
    if not route.is_change:
        return cast("Handler", handler)

    @functools.wraps(handler)
    async def endpoint(change: Act, **given: Any) -> Response:
        return respond_with(await handler(change, **given))

    said = inspect.signature(handler, eval_str=True)
    taken = [one.replace(annotation=Acting) if one.annotation is Change else one for one in said.parameters.values()]
    endpoint.__signature__ = said.replace(parameters=taken)  # type: ignore[attr-defined]
    return endpoint


def _serve(router: LazyRouter, tag: str, route: Route) -> None:
    rule = POLICY[route.action]
    extra: dict[str, Any] = {"x-action": route.action, "x-roles": sorted(rule.roles | rule.own)}
    if route.alias_of is not None:
        extra["x-alias-of"] = route.alias_of
    if route.any_query:
        extra["x-any-query"] = True
    if route.streams_body:
        extra["x-streams-body"] = True
    if not rule.anyone:
        extra["security"] = [{"token": []}]
    word = re.sub(r"\W+", "_", route.path).strip("_")
    model: Any = Data[route.answers] if route.is_change else route.answers  # type: ignore[name-defined]
    router.add_api_route(
        route.path,
        endpoint_of(route),
        methods=[route.method],
        status_code=route.status,
        responses=route.responses(model),
        response_model=None,
        response_class=Response if route.answers is None else JSONResponse,
        tags=[tag],
        operation_id=f"{route.method.lower()}_{word}",
        openapi_extra=extra,
        route_class_override=Guarded,
    )
