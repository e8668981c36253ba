"""Export jobs for workers of anybody's making, in the words of document 002: claim, pollable, update. No database needed.

The same fence as everywhere: a claim gives an `attempt_id`, and an update shows it as `If-Match: "<attempt_id>"`; a replaced
attempt gets 412 and has changed nothing. A claim is a lease of ten minutes, renewed by every update: a worker that is silent
for longer is taken for dead, and a long export that reports now and then is not. To ask for what is pollable is a claim as
well, for two minutes: to ask an engine takes seconds, and engines drop queries that nobody asks about.
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
from holdfast.jobs.claim import claim
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim, WorkerId
from holdfast.jobs.outcome import Done, Fail, Submitted, decide
from holdfast.jobs.poll import claim_to_poll
from holdfast.jobs.progress import report
from holdfast.jobs.renew import WorkerInfo, register, renew_leases, resign
from holdfast.services.exports.export.payload import KIND
from holdfast.services.exports.export.server_side import files_in, handle_of
from holdfast.services.exports.export.written import attempt_prefix
from holdfast.services.exports.snapshots import read
from holdfast.services.exports.snapshots.read import ExportView
from holdfast.services.exports.stores.opening import opened
from holdfast.services.exports.stores.paths import PathRefused, joined, location_of
from holdfast.services.exports.worker_claims import VERSION, acknowledge, give_back_unanswered, plan_folder, plan_query
from holdfast.settings import settings

routes = Routes("export-jobs")

Conn = psycopg.AsyncConnection[Any]
LEASE: Final = timedelta(minutes=10)
POLL_LEASE: Final = timedelta(minutes=2)
LONGEST_LOOK: Final = 20.0  # seconds, for what is in a folder
KINDS: Final = {KIND: 1}
Amount = Annotated[int, Field(ge=0, le=BIGGEST_ID)]
Most = Annotated[int, Field(ge=1, le=100)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]


class ExportClaim(Model):
    """One attempt's right to an export job, with everything that is needed to run it."""

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
    gcs_path: str
    starburst_query_id: str | None
    next_uri: str | None
    poll_count: int


def shown(one: Claim) -> ExportClaim:
    """A claim in the words of the document. Pure."""
    payload, query = one.payload, (one.handle or {}).get("query", {})
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
        gcs_path=f"{payload['location']}/{prefix_of(one)}",
        starburst_query_id=query.get("query_id"),
        next_uri=query.get("next_uri"),
        poll_count=one.poll_count,
    )


def lease_of(one: Claim) -> timedelta:
    """How long a claim is held without an update. Pure."""
    return POLL_LEASE if one.is_poll else LEASE


def prefix_of(one: Claim) -> str:
    """Where the files of a claim go, below the export's place: what was submitted by an earlier attempt goes to that one's."""
    return str((one.handle or {}).get("prefix", attempt_prefix(one.attempt_id)))


class ClaimAsked(Model):
    """Who asks, and for how many at most."""

    worker_id: Name
    limit: Most = 10


@routes.add(
    "POST", "/api/internal/export-jobs/claim", action="work", answers=Data[list[ExportClaim]], also=["/export-jobs/claim"]
)
async def claim_jobs(request: Request, asked: ClaimAsked) -> Response:
    """Claim export jobs that wait, nodes before edges.

    The same worker id may ask again when no answer came: within two minutes it gets the jobs of its earlier claim again, as new
    attempts, if none of them was updated. So let every process have a worker id of its own.
    """
    me = _worker(asked.worker_id, caller_of(request).actor)
    async with plane_of(request).pool.connection() as conn, conn.transaction():
        await give_back_unanswered(conn, me.name, me.host, polls=False)
        claims = await claim(conn, me.id, kinds=KINDS, limit=asked.limit)
        if claims:
            await register(conn, me, lease=LEASE)
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
    """Claim submitted export jobs whose engine is due to be asked; no other worker asks about them meanwhile.

    With a `worker_id` it may be asked again when no answer came, as for a claim; without one they come back after two minutes.
    """
    me = _worker(worker_id or "export-worker", caller_of(request).actor)
    async with plane_of(request).pool.connection() as conn, conn.transaction():
        if worker_id is not None:
            await give_back_unanswered(conn, me.name, me.host, polls=True)
        claims = await claim_to_poll(conn, me.id, kinds=KINDS, limit=limit)
        if claims:
            await register(conn, me, lease=POLL_LEASE)
    return respond([shown(one).model_dump() for one in claims])


def _worker(name: str, actor: str) -> WorkerInfo:
    """Every claim is a worker with a lease of its own: a pod that comes back under its old name keeps no old jobs alive.

    It is registered with what it claims, in one transaction, and resigns with the last of it. Its host is the caller.
    """
    me, kinds = WorkerId(str(uuid4())), dict(KINDS)
    return WorkerInfo(me, name, host=actor, pid=0, version=VERSION, runner="remote", kinds=kinds, owner=actor)


HOLDS_SOMETHING = "SELECT EXISTS (SELECT FROM holdfast.jobs WHERE worker_id = %(worker_id)s)"


async def _resign_if_done(conn: Conn, worker_id: WorkerId) -> None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLDS_SOMETHING, {"worker_id": worker_id})
        ((holds_something,),) = await cursor.fetchall()
    if not holds_something:
        await resign(conn, worker_id)


def _below(path: str) -> str:
    """A path that stays where the attempt may write."""
    try:
        return joined(path)
    except PathRefused as refused:
        raise ValueError(str(refused)) from None


@routes.add(
    "GET", "/api/internal/export-jobs/{job_id}", action="work", answers=Data[ExportView], also=["/export-jobs/{job_id}"],
    refuses=["not-found"],
)  # fmt: skip
async def show_job(request: Request, job_id: JobNumber) -> Response:
    """Show an export job as it is now, whoever has it."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await read.get_export(conn, job_id))


class WrittenFile(Model):
    """One Parquet file, by its path below the `gcs_path` of the claim; the attempt's folder may stand before it."""

    path: Annotated[Text, Field(min_length=1, max_length=2000), AfterValidator(_below)]
    rows: Amount = 0
    bytes: Amount = 0


class Update(Model):
    """What became of an attempt. Without a status it goes on: a new `next_uri` of a submitted one, or a message.

    The times and the count of polls that the document's worker sends are taken and left aside: the database has its own.
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
    """Say what became of an attempt: submitted, completed, failed, or still at it. Needs `If-Match` with its attempt id.

    Rows without `files` are looked for in the `gcs_path` of the claim.
    """
    if asked.status == "completed" and asked.row_count and not asked.files:
        async with holding(plane_of(request).pool, job_id, attempt, "update") as (_, mine):
            pass  # a store takes its time: no connection is kept for it, and the fence is asked once more below
        asked = asked.model_copy(update={"files": await _files_of(mine)})
    async with holding(plane_of(request).pool, job_id, attempt, "update") as (conn, mine):
        await renew_leases(conn, [mine.worker_id], lease=lease_of(mine))
        await acknowledge(conn, mine.worker_id)
        ended = ending(mine, asked)
        if ended is None:
            await report(conn, mine, progress=asked.progress, message=asked.message)
        else:
            async with conn.transaction():
                if asked.status == "submitted" and isinstance(ended, Submitted):
                    await plan_query(conn, mine, ended.handle)
                await finish(conn, mine, decide(mine, ended))
            await _resign_if_done(conn, mine.worker_id)
        return respond(await read.get_export(conn, job_id))


async def _files_of(mine: Claim) -> list[WrittenFile]:
    """What is in the folder of an attempt that has written rows: what no file is named of, no reader would find."""
    to, prefix = mine.payload["location"], prefix_of(mine)
    try:
        async with asyncio.timeout(LONGEST_LOOK), opened(location_of(to), settings()) as store:
            found = [WrittenFile(**one) for one in await files_in(store, prefix)]
    except (HoldfastError, TimeoutError, OSError, ValueError) as error:
        raise _unnamed(f"{to}/{prefix} cannot be read from here: {error or type(error).__name__}") from None
    if not found:
        raise _unnamed(f"{to}/{prefix} is empty")
    return found


def _unnamed(why: str) -> Problem:
    return Problem("invalid-request", f"rows without files, and {why}; send files: a list of path, rows and bytes of each")


def _placed(mine: Claim, path: str) -> str:
    """The path below the export's place, always in the folder of the attempt that wrote it. Pure."""
    prefix = prefix_of(mine)
    if path.startswith(f"{prefix}/"):
        return path
    if path.startswith(attempt_prefix("")):
        raise Problem("invalid-request", f"{path!r} is in the folder of another attempt; yours is {prefix}")
    return f"{prefix}/{path}"


def ending(mine: Claim, asked: Update) -> Done | Submitted | Fail | None:
    """What an update means for its attempt; None: it goes on. Pure."""
    if asked.status == "failed":
        return Fail(asked.error_message or "no reason was given")
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
