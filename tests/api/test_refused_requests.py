"""Requests that are refused before a handler runs: unknown query parameters, bodies that are not JSON, a missing reason."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from factories import add, everything

Client = httpx2.AsyncClient


async def test_unknown_filter_error_lists_the_allowed_ones(viewer: Client) -> None:
    answer = await viewer.get("/api/jobs", params={"stat": "failed", "limit": 1})

    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "INVALID_REQUEST"
    assert [one["pointer"] for one in problem["errors"]] == ["/query/stat"]
    assert problem["detail"].startswith("/query/stat: unknown query parameter; allowed: condition, count, ")
    assert {"state", "kind", "limit", "cursor"} <= set(problem["allowed"])


@pytest.mark.more
async def test_every_declared_route_refuses_unknown_parameters(app: FastAPI, admin: Client, as_role: Any) -> None:
    """All but console pages and requests that are passed on to a graph server. Nothing that a path names exists."""
    worker = await as_role("worker")
    for route in app.state.table:
        if route.any_query:
            continue
        path = route.path.replace("{key:path}", "k").replace("{", "").replace("}", "")
        client = worker if route.action == "work" else admin
        answer = await client.request(route.method, path, params={"no_such_parameter": "1"})

        assert answer.status_code == 422, f"{route.method} {route.path}"
        assert {"pointer": "/query/no_such_parameter"}.items() <= answer.json()["errors"][0].items(), route.path


async def test_path_without_parameters_refuses_any(viewer: Client) -> None:
    answer = await viewer.get("/api/whoami", params={"verbose": "1"})

    assert answer.json()["detail"] == "/query/verbose: this path takes no query parameters"


async def test_unauthenticated_request_learns_nothing_of_parameters(anyone: Client) -> None:
    assert (await anyone.get("/api/jobs", params={"stat": "failed"})).status_code == 401


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "Content-Type is missing; send the body as JSON, with `Content-Type: application/json`"),
        ("application/x-www-form-urlencoded", "Content-Type is 'application/x-www-form-urlencoded'; send the body as JSON"),
    ],
)
async def test_body_without_a_json_content_type_is_refused(ops: Client, conn: Any, given: str | None, said: str) -> None:
    before = await everything(conn)

    answer = await ops.post("/api/jobs", content=b'{"kind": "k"}', headers={"Content-Type": given} if given else {})

    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert said in answer.json()["detail"]
    assert await everything(conn) == before


@pytest.mark.parametrize("given", ["application/json; charset=utf-8", "application/merge-patch+json", "Application/JSON"])
async def test_every_json_content_type_is_accepted(ops: Client, given: str) -> None:
    answer = await ops.post("/api/jobs", content=b'{"kind": "k"}', headers={"Content-Type": given})

    assert answer.status_code == 202


async def test_missing_reason_has_a_pointer(ops: Client, conn: Any) -> None:
    answer = await ops.post(f"/api/jobs/{await add(conn)}/cancel", json={})

    problem = answer.json()
    assert (answer.status_code, problem["detail"]) == (422, "This job belongs to someone else; a reason is required")
    assert [one["pointer"] for one in problem["errors"]] == ["/body/reason"]
