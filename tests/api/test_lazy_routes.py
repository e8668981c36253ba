"""Routes that are loaded when a request needs them answer like routes that are loaded at the start."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.lazy_routes import LazyGroup
from holdfast.api.plane import LazyResources, Resources
from holdfast.database.pool import pool


async def asked(app: Any, method: str, path: str) -> tuple[int, str | None, Any]:
    """The status, the allowed methods and the code of the problem, if there is one."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://here") as client:
        answer = await client.request(method, path)
        return answer.status_code, answer.headers.get("allow"), answer.json().get("code")


def loaded(app: Any) -> list[bool]:
    return ["routes" in vars(route) for route in app.routes if isinstance(route, LazyGroup)]


@pytest.mark.parametrize(
    ("method", "path", "loads"),
    [
        ("GET", "/health", 0),
        ("GET", "/api/jobs", 0),
        ("GET", "/api/mappings", 1),
        ("DELETE", "/api/mappings", 4),
        ("PUT", "/api/jobs", 4),
        ("GET", "/api/ingestion/models", 4),
        ("PUT", "/api/mappings/1/tree", 4),
        ("GET", "/api/nothing", 4),
        ("GET", "/api/worker/x", 4),
    ],
)
async def test_lazy_routes_answer_like_others_and_load_no_more_than_the_search(
    database: str, method: str, path: str, loads: int
) -> None:
    eager = make_app(pool(database), nouns=catalog.nouns())
    lazy = make_app(pool(database), lazy_nouns=catalog.lazy_nouns())

    async with eager.router.lifespan_context(eager), lazy.router.lifespan_context(lazy):
        assert await asked(lazy, method, path) == await asked(eager, method, path)

    assert sum(loaded(lazy)) == loads


@pytest.mark.more
def test_lazy_routes_are_in_the_openapi_document() -> None:
    eager, lazy = make_app(pool(""), nouns=catalog.nouns()), make_app(pool(""), lazy_nouns=catalog.lazy_nouns())

    assert lazy.openapi() == eager.openapi()


async def test_only_opened_resources_are_closed(database: str) -> None:
    closed: list[str] = []

    class Named(Resources):
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            closed.append(self.name)

    services = LazyResources({"one": lambda: Named("one"), "two": lambda: Named("two")})
    app = make_app(pool(database), services=services)

    async with app.router.lifespan_context(app):
        assert app.state.plane.services["two"] is services["two"]

    assert (closed, list(services), len(services)) == (["two"], ["one", "two"], 2)
