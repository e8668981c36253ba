"""Changes of the API, run on the database without the web framework. Called by: `direct.py`.

Nothing is written twice: the handler is the one that the API serves, with the same checks, the same audit entry and the same
idempotency key (`api/change.py`). Its arguments are validated by its own types (`certain.py`). What is not certainly valid, and
every path that is not below, raises `NotHandled`, and the caller repeats the request with the API in memory, which has the
exact refusal.
"""

from __future__ import annotations

import getpass
import inspect
import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import psycopg

from holdfast.api.change import Change
from holdfast.api.plane import Principal
from holdfast.api.policy import Role
from holdfast.api.routes import Route, Routes
from holdfast.cli import certain
from holdfast.cli.reads.values import NotHandled
from holdfast.toolkit.cli.transport import Answer

# The declared routes whose handlers know no web framework, by the beginning of their paths.
CHANGES: Mapping[str, str] = {
    "/api/jobs/": "job_changes:routes",
    "/api/workers/": "controls:routes",
    "/api/job-kinds/": "controls:routes",
    "/api/ops/drain": "controls:drain_routes",
}


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route that changes this, and the variable parts of the path by name; None: the API in memory has it."""
    decoded = unquote(path)
    for beginning, place in CHANGES.items():
        if decoded.startswith(beginning):
            module, _, name = place.partition(":")
            routes: Routes = getattr(import_module(f"holdfast.api.{module}"), name)
            for route in routes.declared:
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)
                if route.method == method and (match := re.fullmatch(pattern, decoded)):
                    return route, match.groupdict()
    return None


def local_caller() -> Principal:
    """The user of this terminal. Who can open the database can change everything in it, so this is an admin."""
    return Principal(f"cli:{getpass.getuser()}", "command line", Role.ADMIN)


async def run(
    conn: psycopg.AsyncConnection[Any],
    route: Route,
    parts: Mapping[str, str],
    *,
    path: str,
    body: Mapping[str, Any] | None,
    key: str | None,
) -> Answer:
    """Call the handler of the route on this connection."""
    caller = local_caller()
    assert caller.may(route.action)
    change = Change(request_of(route.method, path, body, key), caller, route.action, lambda: nullcontext(conn))
    handler: Any = route.handler
    answer = await handler(change, **arguments_of(route, parts, body))
    return Answer(answer.data)


def arguments_of(route: Route, parts: Mapping[str, str], body: Mapping[str, Any] | None) -> dict[str, Any]:
    """The variable parts of the path and the body, validated by the types of the handler."""
    given: dict[str, Any] = dict(parts) if body is None else {**parts, "asked": dict(body)}
    parameters = inspect.signature(route.handler, eval_str=True).parameters
    needed = {name for name, one in parameters.items() if one.default is one.empty} - {"change"}
    if not needed <= given.keys() <= parameters.keys():
        raise NotHandled
    return {name: certain.valid(parameters[name].annotation, value) for name, value in given.items()}


def request_of(method: str, path: str, body: Mapping[str, Any] | None, key: str | None) -> Any:
    """The request as a change sees it, and as it would come over HTTP from this machine. Pure but for its id."""
    sent = b"" if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return SimpleNamespace(
        method=method,
        headers={} if key is None else {"idempotency-key": key},
        url=SimpleNamespace(path=path, query=""),
        state=SimpleNamespace(request_id=uuid4().hex, body=sent),
        client=SimpleNamespace(host="127.0.0.1"),
    )
