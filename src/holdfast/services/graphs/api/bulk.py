"""Delete many graph instances by a filter: a dry run first, then each by the same path as a single deletion."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

import psycopg
from pydantic import BaseModel, Field, StrictBool, model_validator
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Reason, Text
from holdfast.api.envelope import Answer, Data, respond
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.services.graphs.instances import delete, read
from holdfast.services.graphs.instances.read import InstanceView, view_of
from holdfast.services.graphs.states import InstanceState

routes = Routes("instances")

Conn = psycopg.AsyncConnection[Any]
MOST: Final = 100
SAMPLE: Final = 10


class BulkFilter(Model):
    """Which instances; all given fields must match, and at least one must be given."""

    name_prefix: Annotated[Text, Field(min_length=1, max_length=255)] | None = None
    owner: Annotated[Text, Field(min_length=1, max_length=500)] | None = None
    status: InstanceState | None = None
    older_than_hours: Annotated[float, Field(ge=0, le=87_600)] | None = None

    @model_validator(mode="after")
    def _some(self) -> BulkFilter:
        if not self.model_fields_set:
            raise ValueError("give at least one of name_prefix, owner, status, older_than_hours")
        return self

    def conditions(self) -> dict[str, Any]:
        """The filter for `read.listed`. Pure."""
        age = None if self.older_than_hours is None else timedelta(hours=self.older_than_hours)
        return {"name_prefix": self.name_prefix, "owner": self.owner, "status": self.status, "older_than": age}


class BulkAsked(Model):
    """A bulk deletion. Without `dry_run: false` nothing is deleted."""

    filter: BulkFilter
    dry_run: StrictBool = True
    expected_count: Annotated[int, Field(ge=0, le=MOST)] | None = None
    reason: Reason


class BulkSeen(BaseModel):
    """What matches, or what is being deleted: `jobs` are the jobs that do it."""

    matched: int
    sample: list[InstanceView]
    jobs: list[int]


@routes.add(
    "POST", "/api/instances/bulk-delete", action="instances.bulk", status=202, answers=Data[BulkSeen],
    refuses=["expected-count", "refused", "draining", "wrong-state", "not-found", "idempotency-mismatch"],
    others=[(200, "The dry run: what would be deleted")],
)  # fmt: skip
async def delete_in_bulk(asked: BulkAsked, act: Acting) -> Response:
    """Delete every instance that matches a filter, at most 100 at once. A dry run shows what would be deleted."""
    if asked.dry_run:
        async with act.plane.pool.connection() as conn:
            found = await read.listed(conn, limit=MOST, **asked.filter.conditions())
        return respond({"matched": len(found), "sample": [view_of(one) for one in found[:SAMPLE]], "jobs": []})
    if asked.expected_count is None:
        raise Problem(
            "invalid-request", "send `expected_count` from a dry run, so that no more instances are deleted than it showed"
        )

    async def do(conn: Conn) -> Answer:
        found = await read.listed(conn, limit=MOST, **asked.filter.conditions())
        if len(found) > MOST:
            raise Problem("refused", f"more than {MOST} instances match; use a narrower filter")
        if len(found) != asked.expected_count:
            raise Problem(
                "expected-count",
                f"{len(found)} instances match now, {asked.expected_count} were expected",
                matched=len(found),
                expected=asked.expected_count,
            )
        jobs = [
            await delete.begin(conn, one.id, actor=act.actor, reason=asked.reason)
            for one in sorted(found, key=lambda one: one.job_id)
        ]
        return Answer(202, {"matched": len(found), "sample": [view_of(one) for one in found[:SAMPLE]], "jobs": jobs})

    detail = {"filter": asked.filter.model_dump(mode="json", exclude_none=True), "expected": asked.expected_count}
    return await act.run("instances", do, reason=asked.reason, detail=detail)
