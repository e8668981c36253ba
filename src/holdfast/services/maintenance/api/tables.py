"""Tables: list them, show one with its health, submit maintenance, read the history of a table and one run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import psycopg
from fastapi import Query, Request
from pydantic import Field, StrictBool
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Model, Reason, Text
from holdfast.api.envelope import UNCHANGED, Answer, Data, Listed, jsonable, respond_tagged
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import plane_of
from holdfast.api.policy import Role
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.jobs.owner import set_owner
from holdfast.services.maintenance.api.dependencies import Here, Table
from holdfast.services.maintenance.engines import actions as known
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.run import read
from holdfast.services.maintenance.run.read import RunView
from holdfast.services.maintenance.run.request import (
    RequestInvalid,
    Wanted,
    check_actions,
    check_engine,
    forced,
)
from holdfast.services.maintenance.run.submit import refuse_while_draining, submit
from holdfast.services.maintenance.setup import Maintenance
from holdfast.services.maintenance.tables.cache import Row, listed
from holdfast.services.maintenance.tables.health import Part, label_of
from holdfast.services.maintenance.tables.refresh import CatalogUnavailable, find

routes = Routes("tables")

Conn = psycopg.AsyncConnection[Any]
SOON = {"Retry-After": "10"}


@dataclass(frozen=True, slots=True)
class TableView:
    """A table of the cache: its size, its health, and its last maintenance."""

    catalog: str
    database: str
    name: str
    health: int | None
    label: str  # good, fair, poor or unknown
    reasons: list[str]
    data_files: int | None
    data_bytes: int | None
    average_file_bytes: int | None
    delete_files: int | None
    snapshots: int | None
    manifests: int | None
    records: int | None
    measured_at: datetime | None
    error: str | None
    last_maintenance_job_id: int | None
    last_maintenance_state: str | None
    last_maintenance_at: datetime | None
    running_job_id: int | None


@dataclass(frozen=True, slots=True)
class TableShown:
    """A table with the parts of its health score, and what it was computed from."""

    table: TableView
    parts: list[Part]
    would_help: list[str]
    inputs: dict[str, Any] | None


def view_of(row: Row) -> TableView:
    """A table for people. Pure."""
    stats: dict[str, Any] = {} if row.inputs is None else row.inputs["stats"]
    health = row.of_health
    return TableView(
        catalog=row.catalog,
        database=row.namespace,
        name=row.name,
        health=row.health,
        label=label_of(row.health),
        reasons=[] if health is None else health.reasons,
        **{name: stats.get(name) for name in ("data_files", "data_bytes", "average_file_bytes", "delete_files")},
        **{name: stats.get(name) for name in ("snapshots", "manifests", "records")},
        measured_at=row.measured_at,
        error=row.error,
        last_maintenance_job_id=row.last_job_id,
        last_maintenance_state=row.last_state,
        last_maintenance_at=row.last_finished_at,
        running_job_id=row.running_job_id,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@routes.add("GET", "/api/tables", action="tables.read", answers=Listed[TableView], refuses=["invalid-cursor"], also=["/tables"])
async def list_tables(
    request: Request,
    page: Paged,
    catalog: Annotated[Text | None, Query(max_length=255)] = None,
    database: Annotated[Text | None, Query(max_length=1000)] = None,
    search: Annotated[Text | None, Query(max_length=500)] = None,
    health_below: Annotated[int | None, Query(ge=1, le=101)] = None,
) -> Response:
    """List the tables of the cache by name, with their health."""
    async with plane_of(request).pool.connection() as conn:
        found = await listed(
            conn,
            limit=page.limit,
            after=page.after,
            catalog=catalog,
            namespace=database,
            search=search,
            health_below=health_below,
        )
    some = found[: page.limit]
    last = some[-1] if len(found) > page.limit else None
    return page.answer([view_of(row) for row in some], None if last is None else [last.catalog, last.namespace, last.name])


@routes.add(
    "GET", "/api/tables/{db}/{table}", action="tables.read", answers=Data[TableShown], also=["/tables/{db}/{table}"],
    refuses=["unknown-table", "catalog-unavailable"], others=[UNCHANGED],
)  # fmt: skip
async def show_table(request: Request, table: Table, here: Here) -> Response:
    """Show a table: its health score with its parts, and which actions would improve it."""
    async with plane_of(request).pool.connection() as conn:
        row = await known_table(conn, here, table)
    health = row.of_health
    parts = [] if health is None else list(health.parts)
    helps = [part.improvement for part in parts if part.improvement is not None]
    return respond_tagged(request, TableShown(view_of(row), parts, helps, row.inputs))


async def known_table(conn: Conn, here: Maintenance, table: TableRef) -> Row:
    """The table; a problem if neither the cache nor its catalog has it."""
    try:
        found = await find(conn, here, table)
    except CatalogUnavailable as error:
        raise Problem("catalog-unavailable", str(error), headers=SOON, table=str(table)) from None
    if found is None:
        raise Problem("unknown-table", f"there is no table {table}", table=str(table))
    return found


@routes.add(
    "GET", "/api/tables/{db}/{table}/maintenance", action="tables.read", answers=Listed[RunView],
    refuses=["invalid-cursor"], also=["/tables/{db}/{table}/maintenance"],
)  # fmt: skip
async def list_runs(request: Request, table: Table, here: Here, page: Paged) -> Response:
    """The maintenance runs of a table, newest first, each with its actions and what it saved. Also of a table that is gone."""
    async with plane_of(request).pool.connection() as conn:
        found = await read.history(conn, table, here.prices, limit=page.limit, before=page.after)
    some = found[: page.limit]
    return page.answer(some, some[-1].job_id if len(found) > page.limit else None)


@routes.add(
    "GET", "/api/maintenance-runs/{job_id}", action="tables.read", answers=Data[RunView], refuses=["not-found"],
    also=["/api/jobs/{job_id}/actions", "/jobs/{job_id}/actions"], others=[UNCHANGED],
)  # fmt: skip
async def show_run(request: Request, job_id: JobNumber, here: Here) -> Response:
    """Show one maintenance run: the state of its job, and for each action its status and its figures before and after."""
    async with plane_of(request).pool.connection() as conn:
        return respond_tagged(request, await read.get(conn, job_id, here.prices))


# ---------------------------------------------------------------------------------------------------------------------
# Maintaining
# ---------------------------------------------------------------------------------------------------------------------


class MaintenanceAsked(Model):
    """What to do with a table. Each action is a name, `{"action": name, …parameters}` or `{name: {…parameters}}`."""

    actions: Annotated[list[Text | dict[str, Any]], Field(max_length=50, examples=[[*known.ACTIONS]])]
    engine: Text | None = None
    dry_run: StrictBool = Field(False, description="Plan every action, with numbers, and change nothing.")
    wait: StrictBool = Field(False, description="If another job has the table: queue behind it instead of 409.")
    on_sigterm: Literal["release", "fail"] | None = Field(None, description="Default: HOLDFAST_MAINTENANCE_ON_SIGTERM.")
    reason: Reason | None = None


class MaintenanceMade(Model):
    """The job that was enqueued, and its run."""

    id: int
    run: RunView


def checked(asked: MaintenanceAsked, table: TableRef, here: Maintenance, *, wait: bool) -> Wanted:
    """The request, if it has no mistake; otherwise all of its mistakes. Pure."""
    problems: list[known.Problem] = []
    engine = asked.engine or here.default_engine
    check_engine(engine, here.engine_names, "/body/engine", problems)
    embedded = here.embeds(table.catalog)
    actions = check_actions(asked.actions, engine, "/body/actions", problems, dry_run=asked.dry_run, embedded=embedded)
    if forced(actions) and asked.reason is None:
        problems.append(known.Problem("/body/reason", "is required to remove orphan files that are younger than 7 days"))
    if table.catalog not in here.catalogs:
        problems.append(
            known.Problem("/query/catalog", f"there is no catalog {table.catalog!r}; use one of {', '.join(here.catalogs)}")
        )
    if problems:
        raise RequestInvalid(problems)
    return Wanted(
        table=table,
        actions=actions,
        engine=engine,
        dry_run=asked.dry_run,
        wait=asked.wait or wait,
        on_sigterm=asked.on_sigterm or here.on_sigterm,
        reason=asked.reason,
    )


def refuse_force(act: Act, wanted: Wanted) -> None:
    """Only an admin may remove orphan files that are younger than 7 days."""
    if forced(wanted.actions) and act.caller.role is not Role.ADMIN:
        message = "only an admin may remove orphan files that are younger than 7 days: files of running writers may be lost"
        raise Problem("orphan-age-too-low", message, required_roles=[Role.ADMIN])


@routes.add(
    "POST", "/api/tables/{db}/{table}/maintenance", action="tables.maintain", status=202, answers=Data[MaintenanceMade],
    also=["/tables/{db}/{table}/maintenance"],
    refuses=["draining", "validation-failed", "unknown-table", "table-locked", "orphan-age-too-low", "catalog-unavailable",
             "idempotency-mismatch"],
)  # fmt: skip
async def maintain_table(asked: MaintenanceAsked, table: Table, here: Here, act: Acting, wait: bool = False) -> Response:
    """Enqueue a maintenance job: its actions run in a fixed order under the lock of the table.

    Checked in this order: draining (503), the request (422, every mistake at once), the table (404), its lock (409).
    """
    async with act.plane.pool.connection() as conn:
        await refuse_while_draining(conn)
        wanted = checked(asked, table, here, wait=wait)
        refuse_force(act, wanted)
        await known_table(conn, here, table)

    async def do(conn: Conn) -> Answer:
        made = await submit(conn, wanted, requested_by=act.actor)
        await set_owner(conn, made, act.actor)
        run = jsonable(await read.get(conn, made.id, here.prices))
        return Answer(202, {"id": made.id, "run": run}, {"Location": f"/api/maintenance-runs/{made.id}", "Retry-After": "1"})

    detail = {"table": str(table), "actions": [action.as_json() for action in wanted.actions], "dry_run": wanted.dry_run}
    return await act.run(f"table/{table}", do, reason=asked.reason, detail=detail)
