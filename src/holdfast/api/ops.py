"""Routes for operators: the overall state, drain, the demand for workers, the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api import audit, controls
from holdfast.api.acts import Text
from holdfast.api.audit import AuditEntry
from holdfast.api.controls import Drain, drain_of
from holdfast.api.envelope import Data, Listed, Total, respond
from holdfast.api.paging import Paged
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.jobs import control
from holdfast.jobs.states import State
from holdfast.jobs.views import figures, read

routes = Routes("ops")

Word = Annotated[Text, Field(min_length=1, max_length=500)]


class OpsState(BaseModel):
    """The overall counts."""

    jobs: dict[State, Total]
    running: int
    stale: int
    locks_held: int
    lock_waiters: int
    workers: list[dict[str, Any]]
    controls: list[dict[str, Any]]
    draining: bool
    snapshots: dict[str, Total] = {}  # by status, where their service is served, as the following
    export_jobs: dict[str, Total] = {}
    instances: dict[str, Total] = {}
    tables: dict[str, Total] = {}
    maintenance_runs: dict[str, Total] = {}
    ingestions: dict[str, Total] = {}


@routes.add("GET", "/api/ops/state", action="ops.read", answers=Data[OpsState], refuses=["too-slow"])
async def show_state(request: Request) -> Response:
    """Show how many jobs and objects of services are in each state, the held locks, the workers, and paused or drained
    kinds."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        counts = await read.count_states(conn)
        found = await figures.figures(conn)
        said = await control.controls(conn)
        of_services = [await service.inventory(conn) for service in plane.services.values()]
    return respond(
        {
            "jobs": _totals(counts),
            **{noun: _totals(by_status) for inventory in of_services for noun, by_status in inventory.items()},
            "running": found.demand.running,
            "stale": found.demand.stale,
            "locks_held": found.plain["locks_held"],
            "lock_waiters": found.plain["lock_waiters"],
            "workers": found.versions,
            "controls": [one._asdict() for one in said],
            "draining": found.plain["draining"],
        }
    )


def _totals(counts: Mapping[Any, read.Count]) -> dict[str, dict[str, Any]]:
    return {str(name): {"value": count.count, "capped": count.capped} for name, count in counts.items()}


class DemandShown(BaseModel):
    """How much work there is. `value` (the backlog and the running jobs) is the number to scale a Deployment by.

    `backlog` (jobs that no live worker holds) is for an autoscaler that starts a pod per job and counts the running pods
    itself. `running` includes `stale`.
    """

    value: int
    backlog: int
    waiting: int
    due: int
    to_poll: int
    stale: int
    running: int


@routes.add("GET", "/api/stats/queue-depth", action="demand.read", answers=Data[DemandShown])
async def show_demand(request: Request, queue: Word | None = None, kind: Word | None = None) -> Response:
    """Show how much work there is, for an autoscaler without a database; `kind=exports.*`: for all kinds with that prefix."""
    async with plane_of(request).pool.connection() as conn:
        found = await figures.demand(conn, queue, kind)
    parts = {name: getattr(found, name) for name in ("waiting", "due", "to_poll", "stale", "running")}
    return respond({"value": found.total, "backlog": found.backlog, **parts})


@routes.add("GET", "/api/ops/drain", action="ops.read", answers=Data[Drain])
async def show_drain(request: Request) -> Response:
    """Show whether new jobs are refused."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await drain_of(conn))


@routes.add("GET", "/api/audit", action="audit.read", answers=Listed[AuditEntry], refuses=["invalid-cursor", "too-slow"])
async def read_audit(
    request: Request,
    page: Paged,
    actor: Word | None = None,
    object: Word | None = None,
    action: Word | None = None,
    outcome: Literal["done", "denied"] | None = None,
) -> Response:
    """Read the audit log, newest first: actions with their actors, and denied ones."""
    filters = {"actor": actor, "object": object, "action": action, "outcome": outcome, "before": page.after}
    async with plane_of(request).pool.connection() as conn:
        found = await audit.read(conn, limit=page.limit, **filters)
    entries = found[: page.limit]
    return page.answer(entries, entries[-1].id if len(found) > page.limit else None)


routes.include(controls.drain_routes)
