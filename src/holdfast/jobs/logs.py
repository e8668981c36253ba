"""Write the log lines of handlers, a bounded number for each attempt. Called by: workers. Read by: `views/logs.py`.

Like every write after a claim, lines are fenced by the attempt id on the locked row: a replaced attempt adds none. So all lines
of an attempt come before those of the next, and a reader that continues after a line misses none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.database import arrays
from holdfast.jobs.model import AttemptId, Claim

if TYPE_CHECKING:
    from holdfast.telemetry.kept import Line  # reading stored lines does not need structlog

MOST_LINES: Final = 1000  # kept for each attempt: the last ones
MOST_ATTEMPTS: Final = 100  # whose lines are kept: polls of an engine are attempts too, and there may be thousands

Level = Literal["debug", "info", "warning", "error", "critical"]


class Numbered(NamedTuple):
    """A log line with its number in the attempt; a line that is written twice is stored once."""

    claim: Claim
    number: int
    line: Line


# Rows are locked in the order of the ids, as everywhere.
WRITE_LINES = """
    WITH said AS MATERIALIZED (
        SELECT * FROM unnest(%(jobs)s::bigint[], %(attempts)s::uuid[], %(numbers)s::integer[], %(times)s::timestamptz[],
                             %(levels)s::text[], %(messages)s::text[], %(fields)s::text[])
               AS s (job_id, attempt_id, line_no, said_at, level, message, fields)
    ), those AS MATERIALIZED (
        SELECT job_id, attempt_id, max(line_no) AS last FROM said GROUP BY job_id, attempt_id
    ), held AS MATERIALIZED (
        SELECT j.id, j.attempt_id, j.attempt_no, those.last
        FROM those JOIN holdfast.jobs j ON j.id = those.job_id AND j.attempt_id = those.attempt_id
        ORDER BY j.id FOR NO KEY UPDATE OF j
    ), written AS (
        INSERT INTO holdfast.log_lines (job_id, attempt_no, line_no, said_at, level, message, fields)
        SELECT held.id, held.attempt_no, said.line_no, said.said_at, said.level, said.message, said.fields::json
        FROM said JOIN held ON held.id = said.job_id AND held.attempt_id = said.attempt_id
        ON CONFLICT DO NOTHING
    ), too_many AS (
        DELETE FROM holdfast.log_lines l USING held
        WHERE l.job_id = held.id AND l.attempt_no = held.attempt_no AND l.line_no <= held.last - %(lines)s
    ), too_old AS (
        DELETE FROM holdfast.log_lines l USING held
        WHERE l.job_id = held.id AND l.attempt_no <= held.attempt_no - %(tries)s
    )
    SELECT attempt_id::text FROM held
"""


async def write(conn: psycopg.AsyncConnection[Any], lines: Sequence[Numbered]) -> set[AttemptId]:
    """Add lines of several attempts in one statement, each fenced by itself. Returns the attempts that still hold their
    jobs."""
    parameters = {
        "jobs": arrays.of_words(one.claim.id for one in lines),
        "attempts": arrays.of_words(one.claim.attempt_id for one in lines),
        "numbers": arrays.of_words(one.number for one in lines),
        "times": arrays.of_texts(one.line.said_at for one in lines),
        "levels": arrays.of_words(one.line.level for one in lines),
        "messages": arrays.of_texts(one.line.message for one in lines),
        "fields": arrays.of_texts(json.dumps(one.line.fields) for one in lines),
        "lines": MOST_LINES,
        "tries": MOST_ATTEMPTS,
    }
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(WRITE_LINES, parameters, prepare=True)
        return {AttemptId(row[0]) for row in await cursor.fetchall()}
