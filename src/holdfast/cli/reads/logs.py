"""The log of a job's handler."""

from __future__ import annotations

import json

from holdfast.api.answers import jsonable
from holdfast.cli.reads.values import PAGE, Conn, Params, job_id_of, number_of, parsed
from holdfast.jobs.views import read
from holdfast.jobs.views.logs import LEVELS, read_lines
from holdfast.toolkit.cli.transport import Answer


def _place(text: str) -> list[int]:
    attempt, line = text.split(".")
    return [int(attempt), int(line)]


def _level(text: str) -> str:
    if text not in LEVELS:
        raise ValueError(text)
    return text


async def lines(conn: Conn, params: Params, job_id: str) -> Answer:
    counts = {"attempt": number_of(1, 2**31 - 1), "tail": number_of(1, 100_000)}
    given = parsed(params, **PAGE, **counts, level=_level, after=_place)
    begin, limit = given["cursor"] or given["after"], given["limit"] or 50
    await read.get_job(conn, job_id_of(job_id))
    found = await read_lines(
        conn,
        job_id_of(job_id),
        after=None if begin is None else (begin[0], begin[1]),
        attempt=given["attempt"],
        level=given["level"] or "debug",
        tail=given["tail"],
        limit=limit + 1,
    )
    shown = found[:limit]
    rows = [{"id": line.id, **line._asdict()} for line in shown]
    return Answer(jsonable(rows), json.dumps(shown[-1].place) if len(found) > limit else None)
