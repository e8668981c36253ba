"""Failures, grouped by kind, cause and error: list the groups, show one, retry all jobs of a group."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import Field, StrictBool
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Reason
from holdfast.api.bulk import Operation, run_in_bulk
from holdfast.api.envelope import Data, respond
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.jobs.bulk import MOST, BulkAction
from holdfast.jobs.views.failures import Failure, get_failure, list_failures

routes = Routes("failures")

Fingerprint = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


@routes.add("GET", "/api/failures", action="failures.read", answers=Data[list[Failure]], refuses=["too-slow"])
async def list_them(request: Request, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Response:
    """List the groups of failed jobs, the latest first."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await list_failures(conn, limit=limit))


@routes.add(
    "GET", "/api/failures/{fingerprint}", action="failures.read", answers=Data[Failure], refuses=["not-found", "too-slow"]
)
async def show_one(request: Request, fingerprint: Fingerprint) -> Response:
    """Show one group of failed jobs."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await get_failure(conn, fingerprint))


class RetryAll(Model):
    """Retry all jobs of a group. Without `dry_run: false` nothing is changed."""

    reason: Reason
    dry_run: StrictBool = True
    expected_count: Annotated[int, Field(ge=0, le=MOST)] | None = None


@routes.add(
    "POST",
    "/api/failures/{fingerprint}/retry",
    action="jobs.bulk",
    status=202,
    answers=Data[Operation],
    refuses=["expected-count", "draining", "idempotency-mismatch"],
    others=[(200, "The dry run: what would be changed")],
)
async def retry_all(fingerprint: Fingerprint, asked: RetryAll, act: Acting) -> Response:
    """Run all failed jobs of a group again."""
    filters = {"fingerprint": fingerprint}
    return await run_in_bulk(act, BulkAction.RETRY, filters, asked.reason, asked.expected_count, dry_run=asked.dry_run)
