"""Snapshots for custom workers (the protocol of document 002): status if pending, completeness check, finalize.

The state of a snapshot follows from its exports, in the transaction that ends the last one (docs/decisions/0013). So a snapshot
is already final when a worker calls these routes. What the worker sends is compared with the exports, not trusted: a worker
cannot make a snapshot ready if an export is not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import psycopg
from fastapi import Request
from pydantic import Field, StrictBool
from starlette.responses import Response

from holdfast.api.acts import Model, Text
from holdfast.api.envelope import Data, respond
from holdfast.api.paging import BIGGEST_ID, JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.errors import IllegalMove
from holdfast.services.exports.snapshots import read
from holdfast.services.exports.snapshots.read import ExportView, SnapshotView
from holdfast.services.exports.snapshots.settle import settle

routes = Routes("snapshots of workers")

Conn = psycopg.AsyncConnection[Any]
Amount = Annotated[int, Field(ge=0, le=BIGGEST_ID)]
Counts = dict[str, Amount]


class Completeness(Model):
    """Whether all exports of a snapshot have ended, and their totals."""

    snapshot_id: int
    status: str
    cancel_requested: bool
    all_complete: bool
    any_failed: bool
    first_error: str | None
    node_counts: dict[str, int]
    edge_counts: dict[str, int]
    total_size: int


def completeness(snapshot: SnapshotView, exports: list[ExportView]) -> Completeness:
    """Compute the completeness from the exports. Pure."""
    failed = [one for one in exports if one.status == "failed"]
    done = [one for one in exports if one.status == "completed"]
    return Completeness(
        snapshot_id=snapshot.id,
        status=snapshot.status,
        cancel_requested=snapshot.cancel_requested_at is not None,
        all_complete=bool(exports) and all(one.status in ("completed", "failed", "cancelled") for one in exports),
        any_failed=bool(failed),
        first_error=snapshot.error_message,
        node_counts={one.entity_name: one.row_count or 0 for one in done if one.job_type == "node"},
        edge_counts={one.entity_name: one.row_count or 0 for one in done if one.job_type == "edge"},
        total_size=sum(one.size_bytes or 0 for one in done),
    )


async def _seen(conn: Conn, snapshot_id: int) -> Completeness:
    return completeness(await read.get(conn, snapshot_id), await read.exports_of(conn, snapshot_id))


@routes.add(
    "GET", "/api/internal/snapshots/{snapshot_id}/export-jobs", action="work", answers=Data[list[ExportView]],
    refuses=["not-found"],
)  # fmt: skip
async def exports_of_snapshot(request: Request, snapshot_id: JobNumber) -> Response:
    """List the export jobs of a snapshot, nodes first."""
    async with plane_of(request).pool.connection() as conn:
        await read.get(conn, snapshot_id)
        return respond(await read.exports_of(conn, snapshot_id))


@routes.add(
    "GET", "/api/internal/snapshots/{snapshot_id}/status", action="work", answers=Data[Completeness], refuses=["not-found"]
)
async def status_of_snapshot(request: Request, snapshot_id: JobNumber) -> Response:
    """Show whether a snapshot was cancelled, whether all of its exports have ended, and with which result."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await _seen(conn, snapshot_id))


class StatusSaid(Model):
    """The status that a worker reports."""

    status: Literal["creating"]


@routes.add(
    "PATCH", "/api/internal/snapshots/{snapshot_id}/status", action="work", answers=Data[Completeness], refuses=["not-found"]
)
async def status_if_pending(request: Request, snapshot_id: JobNumber, asked: StatusSaid) -> Response:
    """Report that a snapshot is being created. The claim of its first export has already set that; returns its status."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await _seen(conn, snapshot_id))


class FinalizeAsked(Model):
    """The result that the worker reports. Counts and sizes are ignored; those of the manifests are used."""

    success: StrictBool
    error_message: Annotated[Text, Field(max_length=20_000)] | None = None
    node_counts: Counts | None = None
    edge_counts: Counts | None = None
    size_bytes: Amount | None = None


@routes.add(
    "POST", "/api/internal/snapshots/{snapshot_id}/finalize", action="work", answers=Data[Completeness],
    refuses=["not-found", "wrong-state"],
)  # fmt: skip
async def finalize_snapshot(request: Request, snapshot_id: JobNumber, asked: FinalizeAsked) -> Response:
    """End a snapshot whose exports have all ended. Refused if its exports have another result than the worker reports."""
    async with plane_of(request).pool.connection() as conn, conn.transaction():
        await read.get(conn, snapshot_id)
        await settle(conn, snapshot_id)
        seen = await _seen(conn, snapshot_id)
        expected = "ready" if asked.success else "failed"
        if seen.status != expected:
            raise IllegalMove(f"snapshot {snapshot_id} is {seen.status} according to its exports, not {expected}")
    return respond(seen)
