"""Export jobs for custom workers without a database connection (the protocol of document 002): claim, pollable, update.

The fence is the same as everywhere: a claim returns an `attempt_id`, and an update sends it as `If-Match: "<attempt_id>"`. A
replaced attempt gets 412, and its update changes nothing. A claim has a lease of ten minutes that every update renews: a worker
without updates for longer is considered dead. `pollable` also claims, for two minutes: a poll takes seconds, and engines drop
queries that are not polled.

A claim without an update may be one whose response was lost, and document 002's worker sends no update after a poll that
failed. So neither counts as a crash of the job. The next run without an update does (`note_suspects`).
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

import psycopg
from fastapi import Query, Request
from psycopg.rows import tuple_row
from pydantic import AfterValidator, Field, model_validator
from starlette.responses import Response

from holdfast.api.acts import Model, Text
from holdfast.api.envelope import Data, respond
from holdfast.api.fenced import Attempt, holding
from holdfast.api.paging import BIGGEST_ID, JobNumber
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.errors import HoldfastError
from holdfast.jobs.begin import note_begun
from holdfast.jobs.claim import claim
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim, WorkerId
from holdfast.jobs.outcome import Done, Fail, Submitted, decide
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.progress import report
from holdfast.jobs.renew import WorkerInfo, register, renew_leases, resign
from holdfast.services.exports.api.dependencies import exports_of
from holdfast.services.exports.export.payload import KIND
from holdfast.services.exports.export.server_side import files_in, handle_of
from holdfast.services.exports.export.written import attempt_prefix
from holdfast.services.exports.snapshots import read
from holdfast.services.exports.snapshots.read import ExportView
from holdfast.services.exports.worker_claims import (
    VERSION,
    acknowledge,
    note_suspects,
    plan_folder,
    plan_query,
    release_unanswered,
)
from holdfast.stores.opening import StoreOptions, opened_store
from holdfast.stores.paths import PathRefused, joined, location_of

routes = Routes("export-jobs")

Conn = psycopg.AsyncConnection[Any]
LEASE: Final = timedelta(minutes=10)
POLL_LEASE: Final = timedelta(minutes=2)
LISTING_SECONDS: Final = 20.0  # for the listing of a folder
KINDS: Final = {KIND: 1}
Amount = Annotated[int, Field(ge=0, le=BIGGEST_ID)]
Most = Annotated[int, Field(ge=1, le=100)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]


class ExportClaim(Model):
    """A claimed export job, with everything that is needed to run it."""

    id: int
    attempt_id: str
    fence_token: int
    attempt_no: int
    lease_seconds: float
    job_type: str | None
    entity_name: str | None
    snapshot_id: int | None
    sql: str
    column_names: list[str]
    starburst_catalog: str | None
    starburst_role: str | None
    location: str  # where to write the files
    gcs_path: str  # the same, under the name of document 002
    starburst_query_id: str | None
    next_uri: str | None
    poll_count: int


def shown(one: Claim) -> ExportClaim:
    """Convert a claim to its HTTP representation. Pure."""
    payload, query = one.payload, (one.handle or {}).get("query", {})
    location = f"{payload['location']}/{prefix_of(one)}"
    return ExportClaim(
        id=one.id,
        attempt_id=one.attempt_id,
        fence_token=one.fence_token,
        attempt_no=one.attempt_no,
        lease_seconds=lease_of(one).total_seconds(),
        job_type=payload.get("job_type"),
        entity_name=payload.get("entity_name"),
        snapshot_id=payload.get("snapshot_id"),
        sql=payload["sql"],
        column_names=[column["name"] for column in payload.get("columns", ())],
        starburst_catalog=payload.get("catalog"),
        starburst_role=payload.get("role"),
        location=location,
        gcs_path=location,
        starburst_query_id=query.get("query_id"),
        next_uri=query.get("next_uri"),
        poll_count=one.poll_count,
    )


def lease_of(one: Claim) -> timedelta:
    """The lease of a claim without an update. Pure."""
    return POLL_LEASE if one.is_poll else LEASE


def prefix_of(one: Claim) -> str:
    """The folder for the files of a claim, below the location of the export: that of the attempt that submitted the query."""
    return str((one.handle or {}).get("prefix", attempt_prefix(one.attempt_id)))


class ClaimAsked(Model):
    """The worker, and the maximum number of jobs."""

    worker_id: Name
    limit: Most = 10


@routes.add(
    "POST", "/api/internal/export-jobs/claim", action="work", answers=Data[list[ExportClaim]], also=["/export-jobs/claim"]
)
async def claim_jobs(request: Request, asked: ClaimAsked) -> Response:
    """Claim pending export jobs, nodes before edges.

    If the response is lost, claim again with the same worker id: within two minutes, the jobs of the earlier claim are returned
    again, as new attempts, unless one of them was updated. So every process needs a different worker id.
    """
    me = _worker(asked.worker_id, caller_of(request).actor)
    async with plane_of(request).pool.connection() as conn, conn.transaction():
        await release_unanswered(conn, me.name, me.host, polls=False)
        claims = await claim(conn, me.id, kinds=KINDS, limit=asked.limit, begins=False)
        if claims:
            await register(conn, me, lease=LEASE)
            await note_suspects(conn, me.id, claims)
        for one in claims:
            await plan_folder(conn, one, prefix_of(one))
    return respond([shown(one).model_dump() for one in claims])


@routes.add(
    "GET", "/api/internal/export-jobs/pollable", action="work", answers=Data[list[ExportClaim]], also=["/export-jobs/pollable"]
)
async def claim_polls(
    request: Request,
    worker_id: Annotated[Text | None, Query(min_length=1, max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> Response:
    """Claim submitted export jobs that are due to be polled. No other worker polls them meanwhile.

    If the response is lost, repeat the request with the same `worker_id`, as for a claim. Without a `worker_id` the jobs can be
    claimed again after two minutes.
    """
    me = _worker(worker_id or "export-worker", caller_of(request).actor)
    async with plane_of(request).pool.connection() as conn, conn.transaction():
        if worker_id is not None:
            await release_unanswered(conn, me.name, me.host, polls=True)
        claims = await claim_to_poll(conn, me.id, kinds=KINDS, limit=limit, begins=False)
        if claims:
            await register(conn, me, lease=POLL_LEASE)
    return respond([shown(one).model_dump() for one in claims])


def _worker(name: str, actor: str) -> WorkerInfo:
    """A new worker row for each claim, with a separate lease: a restarted pod with the same name does not renew old leases.

    It is registered in the transaction of the claim and removed with its last job. Its host is the caller.
    """
    me, kinds = WorkerId(str(uuid4())), dict(KINDS)
    return WorkerInfo(me, name, host=actor, pid=0, version=VERSION, runner="remote", kinds=kinds, owner=actor)


HAS_JOBS = "SELECT EXISTS (SELECT FROM holdfast.jobs WHERE worker_id = %(worker_id)s)"


async def _resign_if_done(conn: Conn, worker_id: WorkerId) -> None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HAS_JOBS, {"worker_id": worker_id})
        ((has_jobs,),) = await cursor.fetchall()
    if not has_jobs:
        await resign(conn, worker_id)


def _below(path: str) -> str:
    """Check that a path stays below the folder of the attempt."""
    try:
        return joined(path)
    except PathRefused as refused:
        raise ValueError(str(refused)) from None


@routes.add(
    "GET", "/api/internal/export-jobs/{job_id}", action="work", answers=Data[ExportView], also=["/export-jobs/{job_id}"],
    refuses=["not-found"],
)  # fmt: skip
async def show_job(request: Request, job_id: JobNumber) -> Response:
    """Show an export job, whichever worker holds it."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await read.get_export(conn, job_id))


class WrittenFile(Model):
    """One Parquet file. Its path is relative to the `location` of the claim; it may begin with the attempt's folder."""

    path: Annotated[Text, Field(min_length=1, max_length=2000), AfterValidator(_below)]
    rows: Amount = 0
    bytes: Amount = 0


class Update(Model):
    """The state of an attempt. Without a status it continues: a new `next_uri` of a submitted query, or a message.

    The times and the poll count are accepted and ignored: the database records its own.
    """

    status: Literal["submitted", "completed", "failed"] | None = None
    starburst_query_id: Name | None = None
    next_uri: Annotated[Text, Field(max_length=4000)] | None = None
    row_count: Amount | None = None
    size_bytes: Amount | None = None
    files: Annotated[list[WrittenFile], Field(max_length=100_000)] = Field(default_factory=list)
    error_message: Annotated[Text, Field(max_length=20_000)] | None = None
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    message: Annotated[Text, Field(max_length=2000)] | None = None
    next_poll_at: datetime | None = None
    poll_count: Amount | None = None
    submitted_at: datetime | None = None
    completed_at: datetime | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Update:
        if self.status == "submitted" and not (self.starburst_query_id and self.next_uri):
            raise ValueError("submitted needs starburst_query_id and next_uri")
        if self.status == "completed" and (self.row_count is None or self.size_bytes is None):
            raise ValueError("completed needs row_count and size_bytes")
        if self.status == "failed" and not self.error_message:
            raise ValueError("failed needs error_message")
        return self


@routes.add(
    "PATCH", "/api/internal/export-jobs/{job_id}", action="work", answers=Data[ExportView], also=["/export-jobs/{job_id}"],
    refuses=["not-found", "not-own-worker", "stale-attempt", "attempt-required", "cancel-requested"],
)  # fmt: skip
async def update_job(request: Request, job_id: JobNumber, asked: Update, attempt: Attempt) -> Response:
    """Update an attempt: submitted, completed, failed, or in progress. Needs `If-Match` with its attempt id.

    If `row_count` is positive and `files` is empty, the files in the `location` of the claim are listed.
    """
    if asked.status == "completed" and asked.row_count and not asked.files:
        async with holding(plane_of(request).pool, job_id, attempt, "update") as (_, mine):
            pass  # no connection is held during the listing; the fence is checked again below
        asked = asked.model_copy(update={"files": await _files_of(mine, exports_of(request).stores)})
    async with holding(plane_of(request).pool, job_id, attempt, "update") as (conn, mine):
        await renew_leases(conn, [mine.worker_id], lease=lease_of(mine))
        await acknowledge(conn, mine.worker_id)
        ended = ending(mine, asked)
        if ended is None:
            await note_begun(conn, mine.worker_id, [(mine.id, mine.attempt_id, 0.0)])
            await report(conn, mine, progress=asked.progress, message=asked.message)
        else:
            async with conn.transaction():
                if asked.status == "submitted" and isinstance(ended, Submitted):
                    await plan_query(conn, mine, ended.handle)
                await finish(conn, mine, decide(mine, ended))
            await _resign_if_done(conn, mine.worker_id)
        return respond(await read.get_export(conn, job_id))


async def _files_of(mine: Claim, stores: StoreOptions) -> list[WrittenFile]:
    """List the files in the folder of an attempt that reported rows but no files: readers find recorded files only."""
    to, prefix = mine.payload["location"], prefix_of(mine)
    try:
        async with asyncio.timeout(LISTING_SECONDS), opened_store(location_of(to), stores) as store:
            found = [WrittenFile(**one) for one in await files_in(store, prefix)]
    except (HoldfastError, TimeoutError, OSError, ValueError) as error:
        raise _unnamed(f"the server cannot list {to}/{prefix}: {error or type(error).__name__}") from None
    if not found:
        raise _unnamed(f"{to}/{prefix} is empty")
    return found


def _unnamed(why: str) -> Problem:
    return Problem("invalid-request", f"row_count without files, and {why}; send `files` with path, rows and bytes of each")


def _placed(mine: Claim, path: str) -> str:
    """The path below the location of the export, always in the folder of the attempt that wrote it. Pure."""
    prefix = prefix_of(mine)
    if path.startswith(f"{prefix}/"):
        return path
    if path.startswith(attempt_prefix("")):
        raise Problem("invalid-request", f"{path!r} is in the folder of another attempt; yours is {prefix}")
    return f"{prefix}/{path}"


def ending(mine: Claim, asked: Update) -> Done | Submitted | Fail | None:
    """The outcome that an update reports; None if the attempt continues. Pure."""
    if asked.status == "failed":
        return Fail(asked.error_message or "the worker gave no reason")
    if asked.status == "completed":
        columns = [{**column, "arrow": ""} for column in mine.payload.get("columns", ())]
        files = [{**file.model_dump(), "path": _placed(mine, file.path)} for file in asked.files]
        counts = {"rows": asked.row_count, "bytes": asked.size_bytes, "files": files, "columns": columns}
        return Done({**counts, "to": mine.payload["location"], "attempt_id": mine.attempt_id, "runtime": "remote"})
    if asked.status == "submitted":
        query = {"query_id": asked.starburst_query_id, "next_uri": asked.next_uri}
        tag = (mine.handle or {}).get("tag", mine.attempt_id)
        return Submitted(handle_of(query, tag, prefix_of(mine), "unload"))
    if asked.next_uri is not None and mine.is_poll:
        return Submitted({**mine.handle, "query": {**mine.handle["query"], "next_uri": asked.next_uri}})
    return None
