"""Snapshots: create, read, cancel, retry, delete; and the list of export jobs.

Graph instances create their snapshots themselves. Creating one through the API requires the role operator, or the grant
`exports.snapshots.create` of an identity provider.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import psycopg
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, OwnerOf, Reason, Text
from holdfast.api.envelope import UNCHANGED, Answer, Data, Listed, jsonable, respond, respond_tagged
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import Principal, caller_of, plane_of
from holdfast.api.policy import Role
from holdfast.api.routes import Routes
from holdfast.errors import NotFound
from holdfast.jobs.config import value_of
from holdfast.services.exports.api.dependencies import Description, Duration, Here, Title, UseCase, require_role
from holdfast.services.exports.export.payload import Runtime
from holdfast.services.exports.limits import MAX_DURATION
from holdfast.services.exports.mappings import store
from holdfast.services.exports.snapshots import change, read
from holdfast.services.exports.snapshots.create import NewSnapshot, create
from holdfast.services.exports.snapshots.read import ExportView, Progress, SnapshotView
from holdfast.services.exports.snapshots.states import SnapshotState

routes = Routes("snapshots")

Conn = psycopg.AsyncConnection[Any]
Status = Literal["pending", "claimed", "submitted", "completed", "failed", "cancelled"]
CHANGES = ["not-found", "wrong-state", "idempotency-mismatch"]


class SnapshotShown(Model):
    """A snapshot with its progress and its exports."""

    snapshot: SnapshotView
    progress: Progress
    exports: list[ExportView]


async def shown(conn: Conn, snapshot_id: int, caller: Principal) -> dict[str, Any]:
    """A snapshot with its exports."""
    snapshot = await read.get(conn, snapshot_id)
    exports = [visible(one, snapshot.owner, caller) for one in await read.exports_of(conn, snapshot_id)]
    found: dict[str, Any] = jsonable({"snapshot": snapshot, "progress": read.progress_of(exports), "exports": exports})
    return found


def visible(export: ExportView, owner: str | None, caller: Principal) -> ExportView:
    """An export as this caller may see it. Without the right to read payloads, its SQL is hidden, and so is its `next_uri`,
    because the engine returns rows to any client with that address. An analyst sees them for their own snapshots. Pure."""
    is_others = caller.role is Role.ANALYST and owner != caller.actor
    if caller.may("jobs.read_payload") and not is_others:
        return export
    return replace(export, sql=None, next_uri=None)


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@routes.add("GET", "/api/snapshots", action="snapshots.read", answers=Listed[SnapshotView], refuses=["invalid-cursor"])
async def list_snapshots(
    request: Request,
    page: Paged,
    mapping_id: JobNumber | None = None,
    status: SnapshotState | None = None,
    owner: Annotated[Text | None, Query(max_length=500)] = None,
) -> Response:
    """List snapshots, newest first."""
    async with plane_of(request).pool.connection() as conn:
        found = await read.listed(conn, limit=page.limit, before=page.after, mapping_id=mapping_id, status=status, owner=owner)
    some = found[: page.limit]
    return page.answer(some, some[-1].id if len(found) > page.limit else None)


@routes.add(
    "GET", "/api/snapshots/{snapshot_id}", action="snapshots.read", answers=Data[SnapshotShown], refuses=["not-found"],
    others=[UNCHANGED],
)  # fmt: skip
async def show_snapshot(request: Request, snapshot_id: JobNumber) -> Response:
    """Show a snapshot with its exports: rows, bytes, progress of the engine, and queue position.

    This counts as a use of a ready snapshot and restarts its inactivity timeout.
    """
    async with plane_of(request).pool.connection() as conn:
        await change.note_use(conn, snapshot_id)
        return respond_tagged(request, await shown(conn, snapshot_id, caller_of(request)))


@routes.add(
    "GET", "/api/snapshots/{snapshot_id}/progress", action="snapshots.read", answers=Data[Progress], refuses=["not-found"]
)
async def show_progress(request: Request, snapshot_id: JobNumber) -> Response:
    """Show the progress of a snapshot."""
    async with plane_of(request).pool.connection() as conn:
        await read.get(conn, snapshot_id)
        return respond(read.progress_of(await read.exports_of(conn, snapshot_id)))


@routes.add(
    "GET", "/api/export-jobs", action="snapshots.read", answers=Listed[ExportView], refuses=["invalid-cursor"],
    also=["/api/ops/export-jobs"],
)  # fmt: skip
async def list_export_jobs(
    request: Request, page: Paged, status: Status | None = None, snapshot_id: JobNumber | None = None
) -> Response:
    """List export jobs, newest first: analysts see those of their own snapshots, operators and viewers see all."""
    caller = caller_of(request)
    owner = caller.actor if caller.role is Role.ANALYST else None
    async with plane_of(request).pool.connection() as conn:
        found = await read.list_exports(
            conn, limit=page.limit, before=page.after, status=status, snapshot_id=snapshot_id, owner=owner
        )
    some = [visible(one, owner, caller) for one in found[: page.limit]]
    return page.answer(some, some[-1].id if len(found) > page.limit else None)


@routes.add("GET", "/api/export-jobs/{job_id}", action="snapshots.read", answers=Data[ExportView], refuses=["not-found"])
async def show_export_job(request: Request, job_id: JobNumber) -> Response:
    """Show one export job: analysts see those of their own snapshots, operators and viewers see all."""
    caller = caller_of(request)
    async with plane_of(request).pool.connection() as conn:
        found = await read.get_export(conn, job_id)
        owner = (await read.get(conn, found.snapshot_id)).owner
    if caller.role is Role.ANALYST and owner != caller.actor:
        raise NotFound(f"there is no export job {job_id} in your snapshots")
    return respond(visible(found, owner, caller))


# ---------------------------------------------------------------------------------------------------------------------
# Changing
# ---------------------------------------------------------------------------------------------------------------------


class SnapshotAsked(Model):
    """A snapshot to create. Without a version it uses the current version of the mapping."""

    mapping_id: JobNumber
    mapping_version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    name: Title | None = None
    description: Description | None = None
    runtime: Runtime = "auto"
    ttl: Duration | None = None
    inactivity_timeout: Duration | None = None


@routes.add(
    "POST", "/api/snapshots", action="snapshots.create", status=202, answers=Data[SnapshotShown],
    refuses=["not-found", "missing-use-case", "draining", "idempotency-mismatch"],
)  # fmt: skip
async def create_snapshot(asked: SnapshotAsked, act: Acting, here: Here, use_case: UseCase = None) -> Response:
    """Create a snapshot of a mapping version, with one export job per node and edge."""

    async def do(conn: Conn) -> Answer:
        head = await store.get(conn, asked.mapping_id)
        require_role(here, head.engine, use_case)
        longest = await value_of(conn, MAX_DURATION)
        new = NewSnapshot(**asked.model_dump(), root=here.root, max_seconds=float(longest), role=use_case)
        snapshot_id = await create(conn, new, owner=act.actor)
        return Answer(
            202, await shown(conn, snapshot_id, act.caller), {"Location": f"/api/snapshots/{snapshot_id}", "Retry-After": "1"}
        )

    return await act.run("snapshot", do, detail={"mapping_id": asked.mapping_id})


def _owner(snapshot_id: int) -> OwnerOf:
    return partial(read.owner_of, snapshot_id=snapshot_id)


class Why(Model):
    """The reason, recorded in the audit log."""

    reason: Reason | None = None


@routes.add(
    "POST", "/api/snapshots/{snapshot_id}/cancel", action="snapshots.change", status=202, answers=Data[SnapshotShown],
    refuses=CHANGES,
)  # fmt: skip
async def cancel_snapshot(snapshot_id: JobNumber, act: Acting, asked: Why | None = None) -> Response:
    """Cancel a snapshot: waiting exports are cancelled, running ones are asked to stop."""
    reason = (asked or Why()).reason

    async def do(conn: Conn) -> Answer:
        await change.cancel(conn, snapshot_id, actor=act.actor, reason=reason)
        return Answer(202, await shown(conn, snapshot_id, act.caller))

    return await act.run(f"snapshot/{snapshot_id}", do, owner=_owner(snapshot_id), reason=reason)


@routes.add(
    "POST", "/api/snapshots/{snapshot_id}/retry", action="snapshots.change", status=202, answers=Data[SnapshotShown],
    refuses=[*CHANGES, "refused"],
)  # fmt: skip
async def retry_snapshot(snapshot_id: JobNumber, act: Acting, asked: Why | None = None) -> Response:
    """Retry the failed and cancelled exports of a snapshot. Completed exports are kept."""
    reason = (asked or Why()).reason

    async def do(conn: Conn) -> Answer:
        await change.retry(conn, snapshot_id, actor=act.actor, reason=reason)
        return Answer(202, await shown(conn, snapshot_id, act.caller))

    return await act.run(f"snapshot/{snapshot_id}", do, owner=_owner(snapshot_id), reason=reason)


class LifecycleAsked(Model):
    """The TTL and the inactivity timeout; null: no limit."""

    ttl: Duration | None = None
    inactivity_timeout: Duration | None = None


@routes.add(
    "PUT", "/api/snapshots/{snapshot_id}/lifecycle", action="snapshots.change", answers=Data[SnapshotView], refuses=CHANGES
)
async def set_lifecycle(snapshot_id: JobNumber, asked: LifecycleAsked, act: Acting) -> Response:
    """Set the TTL and the inactivity timeout of a snapshot. `expires_at` and `inactive_at` say when it is deleted."""

    async def do(conn: Conn) -> Answer:
        await change.set_lifecycle(conn, snapshot_id, asked.ttl, asked.inactivity_timeout)
        return Answer(200, await read.get(conn, snapshot_id))

    return await act.run(f"snapshot/{snapshot_id}", do, owner=_owner(snapshot_id), detail=asked.model_dump())


class Gone(Model):
    """The deleted snapshot, and the job that removes its files."""

    id: int
    removal_job_id: int


@routes.add(
    "DELETE",
    "/api/snapshots/{snapshot_id}",
    action="snapshots.change",
    answers=Data[Gone],
    refuses=[*CHANGES, "draining", "resource-has-dependencies"],
)
async def delete_snapshot(snapshot_id: JobNumber, act: Acting) -> Response:
    """Delete a snapshot that has ended. A job removes its files."""

    async def do(conn: Conn) -> Answer:
        return Answer(200, {"id": snapshot_id, "removal_job_id": await change.delete(conn, snapshot_id)})

    return await act.run(f"snapshot/{snapshot_id}", do, owner=_owner(snapshot_id))
