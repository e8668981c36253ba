"""Facts about the health of the database, for `holdfast doctor` and `holdfast status`, which draw the conclusions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from holdfast.api.envelope import Data, Total, respond
from holdfast.api.live_tokens import has_live_tokens
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.jobs.states import State
from holdfast.jobs.views.checkup import check_up

routes = Routes("doctor")


class Checked(BaseModel):
    """The facts."""

    version: str
    knows_somebody: bool
    now: datetime
    server: dict[str, Any]
    oldest_snapshot: dict[str, Any] | None
    tables: list[dict[str, Any]]
    jobs: dict[State, Total]
    quarantined: Total
    stale: int
    poll_lag: float
    oldest: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    commits: list[dict[str, Any]]
    silent: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    controls: list[dict[str, Any]]
    left_locks: list[dict[str, Any]]


@routes.add("GET", "/api/doctor", action="ops.read", answers=Data[Checked], refuses=["too-slow"])
async def look_for_trouble(request: Request) -> Response:
    """Check the server, its tables, workers, leases, kinds and locks."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        found = await check_up(conn)
        knows = plane.oidc is not None or plane.options.gateway_secret is not None or await has_live_tokens(conn)
    return respond({"version": plane.options.version, "knows_somebody": knows, **_fields(found)})


def _fields(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}
