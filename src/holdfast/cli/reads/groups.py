"""Failures, pipelines and locks."""

from __future__ import annotations

from datetime import datetime

from holdfast.api.answers import jsonable
from holdfast.cli.reads.values import LONGEST_KEY, PAGE, Conn, Params, page_of, parsed, text_of, uuid_of
from holdfast.jobs.pipelines import list_pipelines, read_pipeline
from holdfast.jobs.views import read
from holdfast.jobs.views.failures import get_failure, list_failures
from holdfast.jobs.views.locks import list_locks
from holdfast.toolkit.cli.transport import Answer


async def failures(conn: Conn, params: Params) -> Answer:
    given = parsed(params, **PAGE)
    return Answer(jsonable(await list_failures(conn, limit=given["limit"] or 50)))


async def failure(conn: Conn, params: Params, fingerprint: str) -> Answer:
    parsed(params)
    return Answer(jsonable(await get_failure(conn, fingerprint)))


async def pipelines(conn: Conn, params: Params) -> Answer:
    given = parsed(params, **PAGE)
    limit, after = given["limit"] or 50, given["cursor"]
    before = None if after is None else (datetime.fromisoformat(after[0]), after[1])
    found = await list_pipelines(conn, limit=limit + 1, before=before)
    return page_of(found, limit, lambda line: [line.created_at.isoformat(), line.id])


async def pipeline(conn: Conn, params: Params, pipeline_id: str) -> Answer:
    parsed(params)
    found = await read_pipeline(conn, uuid_of(pipeline_id))
    page = await read.list_jobs(conn, limit=read.LONGEST_PAGE, pipeline_id=uuid_of(pipeline_id))
    shown = {"id": found.id, "name": found.name, "status": found.status, "counts": found.counts, "jobs": page.jobs}
    return Answer(jsonable(shown))


async def locks(conn: Conn, params: Params) -> Answer:
    given = parsed(params, **PAGE, key=text_of(LONGEST_KEY))
    limit = given["limit"] or 50
    found = await list_locks(conn, key=given["key"], after=given["cursor"] or "", limit=limit + 1)
    return page_of(found, limit, lambda lock: lock.key)
