"""The web console as one application: pages, forms, live updates. Called by: `apps/api.py` and `embed.py`.

It is mounted beside the API and uses the same plane: the same pool, the same callers, the same policy. Every address is
guarded exactly as a route of the API is: authentication, rate limit, permission, audit of a denial. Reading needs no script.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.api.auth import SAFE_METHODS, Unknown, refuse_foreign_origin
from holdfast.api.guarded import guard
from holdfast.api.plane import NOBODY, Plane, Principal, plane_of
from holdfast.api.policy import POLICY
from holdfast.api.problems import Problem, advice_for, of_ours, of_the_database
from holdfast.console import bulk, confirm, login, oidc, stream
from holdfast.console.actions import KERNEL_ACTIONS, Action
from holdfast.console.pages import KERNEL_PAGES, ServedPage
from holdfast.console.render import NavEntry, Renderer, environment
from holdfast.console.static_files import serve_file
from holdfast.console.view import Shown, View, link, own_path
from holdfast.console.views.frame import read_frame
from holdfast.errors import HoldfastError
from holdfast.telemetry.log import log

KnownBy = Callable[[Request], Awaitable[Principal | None]]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parts:
    """What services add to the console: pages, actions, and the folder with the templates of each service."""

    pages: Sequence[ServedPage] = ()
    actions: Sequence[Action] = ()
    templates: Mapping[str, Path] = field(default_factory=dict)


def make_console(
    parts: Parts | None = None, *, known_by: KnownBy | None = None, links: Mapping[str, str] | None = None
) -> Starlette:
    """The console. `attach` connects it to a plane before its first request.

    `known_by`: authenticates each request for an application that contains the console; then there is no sign-in here. `links`:
    external links of a job by name, with `{job_id}`, `{kind}`, `{queue}`, `{worker_id}` and `{pipeline_id}`.
    """
    parts = parts or Parts()
    pages = [*KERNEL_PAGES, *parts.pages]
    for page in pages:
        assert page.action in POLICY, f"the page {page.path!r} uses the action {page.action}, which has no rule"
    app = Starlette(routes=[*_own_routes(known_by), *(route for page in pages for route in _routes(page))])
    app.state.renderer = Renderer(
        environment(parts.templates),
        [NavEntry(page.path, page.title, page.section, page.action) for page in pages if page.section],
        {action.name: action for action in (*KERNEL_ACTIONS, *parts.actions)},
        links or {},
        signs_in=known_by is None,
    )
    app.state.known_by = known_by
    app.state.pages = pages
    return app


def attach(console: Starlette, plane: Plane, api: Any) -> None:
    """Connect the console to a plane, and to the API that runs its actions."""
    console.state.plane, console.state.hub, console.state.api = plane, plane.hub, api


def _own_routes(known_by: KnownBy | None) -> list[Route]:
    found = [
        _at("static/{name}", _guarded("index.read", serve_file)),
        _at("events", _guarded("ops.read", stream.follow)),
        _at("act/{name}", _guarded("index.read", confirm.ask, known=True)),
        _at("act/{name}", _guarded("index.read", confirm.run, known=True), "POST"),
        _at("bulk", _guarded("jobs.bulk", bulk.ask)),
        _at("bulk", _guarded("jobs.bulk", bulk.run), "POST"),
    ]
    if known_by is not None:
        return found
    return [
        *found,
        _at("login", _guarded("login", login.ask)),
        _at("login", _guarded("login", login.sign_in), "POST"),
        _at("login/oidc", _guarded("login", oidc.start)),
        _at("login/callback", _guarded("login", oidc.finish)),
        _at("logout", _guarded("index.read", login.sign_out, known=True), "POST"),
    ]


def _at(path: str, handler: Handler, method: str = "GET") -> Route:
    """A route; its template, and not the path of a request, is the label of its metrics."""
    template = SimpleNamespace(path=f"/console/{path}")

    async def routed(request: Request) -> Response:
        request.scope["route"] = template
        return await handler(request)

    return Route(f"/{path}", routed, methods=[method])


def _routes(page: ServedPage) -> list[Route]:
    async def show(request: Request) -> Response:
        plane = plane_of(request)
        async with plane.pool.connection() as conn:
            frame = await read_frame(conn)
            shown = await page.render(View(request, conn, frame.now))
        more = await shown.later() if shown.later else {}
        if isinstance(more, Response):
            return more
        template = f"{page.service}/{shown.template}" if page.service else shown.template
        shown = replace(shown, template=template, values={**shown.values, **more})
        return _document(request, page, shown, frame)

    found = [_at(page.path, _guarded(page.action, show))]
    return found if page.take is None else [*found, _at(page.path, _guarded(page.action, page.take), "POST")]


def _document(request: Request, page: ServedPage, shown: Shown, frame: Any) -> Response:
    renderer: Renderer = request.app.state.renderer
    return renderer.page(
        request,
        shown.template,
        shown.values,
        title=shown.title or page.title,
        caller=request.state.caller,
        frame=frame,
        status=shown.status,
        headers=shown.headers,
    )


# ---------------------------------------------------------------------------------------------------------------------
# The guard
# ---------------------------------------------------------------------------------------------------------------------


def _guarded(action: str, handle: Handler, *, known: bool = False) -> Handler:
    """The handler behind the guard of the API. `known`: for everybody who is signed in, whatever the role."""

    async def guarded(request: Request) -> Response:
        try:
            await _admit(request, "whoami.read" if known else action)
            return await handle(request)
        except Unknown as unknown:
            return _to_login(request, unknown)
        except (Problem, HoldfastError, psycopg.Error, PoolTimeout) as error:
            return refuse(request, problem_of(error))

    return guarded


async def _admit(request: Request, action: str) -> None:
    """Authenticate, count and allow the caller, as the API does; refuse forms of other sites."""
    request.state.action, request.state.caller = action, NOBODY
    if request.method not in SAFE_METHODS:
        refuse_foreign_origin(request, plane_of(request))
    known_by: KnownBy | None = request.app.state.known_by
    if known_by is not None and not POLICY[action].anyone:
        principal = await known_by(request)
        if principal is None:
            raise Problem("unauthenticated", "the application that serves this console does not know you")
        request.state.known = principal
    request.state.caller = await guard(request, action)


def problem_of(error: Exception) -> Problem:
    """The same problem as the API answers with."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HoldfastError):
        return of_ours(error)
    log.warning("http_unavailable", code="DATABASE", error=f"{type(error).__name__}: {error}")
    return of_the_database(error)


def refuse(request: Request, problem: Problem) -> Response:
    """A page that says what happened and what to do."""
    renderer: Renderer = request.app.state.renderer
    caller: Principal = getattr(request.state, "caller", NOBODY)
    values = {"problem": problem, "advice": advice_for(problem), "request_id": getattr(request.state, "request_id", "")}
    known = None if caller.role is None else caller
    return renderer.page(
        request, "problem.html", values, title="Refused", caller=known, status=problem.status, headers=problem.headers
    )


def _to_login(request: Request, unknown: Unknown) -> Response:
    if not request.app.state.renderer.signs_in or "x-fragment" in request.headers or request.method != "GET":
        return refuse(request, unknown)
    wanted = f"{own_path(request)}{f'?{request.url.query}' if request.url.query else ''}"
    return RedirectResponse(link(request, "login", next=wanted), 303)
