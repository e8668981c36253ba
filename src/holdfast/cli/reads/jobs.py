"""Jobs: their list, one of them, its explanation and its history."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from holdfast.api.answers import jsonable
from holdfast.cli.reads.values import (
    LARGEST_ID,
    LONGEST_KEY,
    LONGEST_NAME,
    PAGE,
    Conn,
    Params,
    fingerprint_of,
    job_id_of,
    moment_of,
    number_of,
    parsed,
    text_of,
)
from holdfast.jobs.states import State
from holdfast.jobs.views import explain, read
from holdfast.jobs.views import history as moves
from holdfast.jobs.views.filters import Condition
from holdfast.toolkit.cli.transport import Answer

FILTERS: dict[str, Callable[[str], Any]] = {
    "state": State,
    "kind": text_of(LONGEST_NAME),
    "queue": text_of(LONGEST_NAME),
    "condition": Condition,
    "pipeline_id": UUID,
    "worker_id": UUID,
    "slot_key": text_of(LONGEST_KEY),
    "parent_id": number_of(1, LARGEST_ID),
    "fingerprint": fingerprint_of,
    "created_after": moment_of,
    "created_before": moment_of,
    "q": text_of(LONGEST_NAME),
}


async def listed(conn: Conn, params: Params) -> Answer:
    given = parsed(params, **PAGE, **FILTERS)
    limit, before = given.pop("limit") or 50, given.pop("cursor")
    found = await read.list_jobs(conn, limit=limit, before=before, **given)
    return Answer(jsonable(found.jobs), None if found.before is None else json.dumps(found.before))


async def one(conn: Conn, params: Params, job_id: str) -> Answer:
    parsed(params)
    return Answer(jsonable(await read.get_job(conn, job_id_of(job_id))))


async def explanation(conn: Conn, params: Params, job_id: str) -> Answer:
    parsed(params)
    return Answer({"job_id": int(job_id), "sentence": await explain.explain(conn, job_id_of(job_id))})


async def history(conn: Conn, params: Params, job_id: str) -> Answer:
    parsed(params)
    await read.get_job(conn, job_id_of(job_id))
    return Answer(jsonable(await moves.history(conn, job_id_of(job_id))))
