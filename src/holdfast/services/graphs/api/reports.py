"""Reports of graph servers, and the plan that they fetch. The secret of a start authorizes only that instance.

These routes need no API token: the graph server sends the secret that it was started with, as a bearer token.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from holdfast.api.acts import Text
from holdfast.api.envelope import Data, respond
from holdfast.api.paging import JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.services.exports import offers
from holdfast.services.graphs.instances import report, rows
from holdfast.services.graphs.instances.plans import plan_of
from holdfast.services.graphs.instances.report import Report
from holdfast.telemetry.log import log

routes = Routes("instances")

BEARER: Final = re.compile(r"^[Bb]earer ([A-Za-z0-9_-]{32,100})$")
Bytes = Annotated[int, Field(ge=0, le=2**53)]


async def check_secret(request: Request, instance_id: int) -> None:
    """Refuse a request without the secret of this instance. A malformed one is refused before the database is asked."""
    match = BEARER.match(request.headers.get("authorization", ""))
    if match is not None:
        async with plane_of(request).pool.connection() as conn:
            if await report.is_secret_of(conn, instance_id, match[1]):
                return
        log.warning("graph_report_refused", instance_id=instance_id)
    raise Problem("not-this-instance", f"this needs the secret of the current start of graph instance {instance_id}")


class Reported(BaseModel):
    """What a graph server reports. Fields that this version does not know are ignored."""

    model_config = ConfigDict(extra="ignore")

    start_token: Annotated[Text, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    queries: Annotated[int, Field(ge=0, le=2**31)] = 0
    last_activity_at: AwareDatetime | None = None
    pod_name: Annotated[Text, Field(min_length=1, max_length=253)] | None = None
    memory_bytes: Bytes | None = None
    disk_bytes: Bytes | None = None
    progress: dict[str, Any] | None = None


class Wanted(BaseModel):
    """Whether the instance still needs this graph server."""

    wanted: bool


@routes.add(
    "POST", "/api/instances/{instance_id}/report", action="instances.report", answers=Data[Wanted],
    refuses=["not-this-instance", "invalid-request"],
)  # fmt: skip
async def take_report(request: Request, instance_id: JobNumber, said: Reported) -> Response:
    """Take activity, memory and progress of a graph server."""
    await check_secret(request, instance_id)
    given = Report(**{name: getattr(said, name) for name in Reported.model_fields})
    async with plane_of(request).pool.connection() as conn:
        return respond({"wanted": await report.store(conn, instance_id, given)})


@routes.add(
    "GET", "/api/instances/{instance_id}/plan", action="instances.report", answers=None,
    refuses=["not-found", "not-this-instance"],
)  # fmt: skip
async def show_plan(request: Request, instance_id: JobNumber) -> Response:
    """The load plan of the current start, for a graph server whose runtime cannot pass it on."""
    await check_secret(request, instance_id)
    async with plane_of(request).pool.connection() as conn:
        instance = await rows.get(conn, instance_id)
        plan = plan_of(instance, await offers.read_snapshot(conn, instance.snapshot_id))
    return JSONResponse(plan.model_dump(mode="json"))
