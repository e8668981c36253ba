"""What handlers say, as a bounded tail of each attempt. Written by: workers, beside the job. Read by: people who ask why.

Like every write after a claim it is guarded by the attempt id, on the row, under its lock: a replaced attempt adds nothing.
So all lines of an attempt come before those of the next, and whoever has read up to a line misses none that follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.database import arrays
from holdfast.jobs.model import AttemptId, Claim, JobId
from holdfast.telemetry.kept import LEVELS, Line

MOST_LINES: Final = 1000  # that are kept of an attempt: the last ones
MOST_ATTEMPTS: Final = 100  # whose lines are kept: looks at an engine are attempts too, and there may be thousands

Level = Literal["debug", "info", "warning", "error", "critical"]


class Numbered(NamedTuple):
    """A line of an attempt, with its number there; written twice, it is there once."""

    claim: Claim
    number: int
    line: Line


# The jobs are held in the order of their ids, as by everybody who changes several.
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
    """Add lines of several attempts in one statement, each fenced by itself; the attempts that still hold their jobs."""
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


class LogLine(NamedTuple):
    """A line as people read it. `at` is when it came to the database; `said_at` is what the worker's own clock showed."""

    attempt_no: int
    line_no: int
    at: datetime
    said_at: datetime
    level: str
    message: str
    fields: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among the lines of its job: to read on from."""
        return self.attempt_no, self.line_no

    @property
    def id(self) -> str:
        """The same as people write it."""
        return f"{self.attempt_no}.{self.line_no}"


READ_LINES = """
    SELECT attempt_no, line_no, at, said_at, level, message, fields FROM holdfast.log_lines
    WHERE job_id = %(job)s AND (attempt_no, line_no) > (%(after_attempt)s, %(after_line)s)
      AND (%(attempt)s::integer IS NULL OR attempt_no = %(attempt)s) AND level = ANY (%(levels)s::text[])
    ORDER BY attempt_no, line_no LIMIT %(limit)s
"""
READ_LAST_LINES = """
    SELECT attempt_no, line_no FROM holdfast.log_lines
    WHERE job_id = %(job)s AND (%(attempt)s::integer IS NULL OR attempt_no = %(attempt)s) AND level = ANY (%(levels)s::text[])
    ORDER BY attempt_no DESC, line_no DESC OFFSET %(tail)s LIMIT 1
"""
FROM_THE_START: Final = (0, 0)


async def read_lines(
    conn: psycopg.AsyncConnection[Any],
    job_id: JobId,
    *,
    after: tuple[int, int] | None = None,
    attempt: int | None = None,
    level: Level = "debug",
    tail: int | None = None,
    limit: int = MOST_LINES,
) -> list[LogLine]:
    """Lines of a job in the order in which they were said: those after a place, or only the last `tail` of them."""
    filters = {"job": job_id, "attempt": attempt, "levels": list(LEVELS[LEVELS.index(level) :])}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        if after is None and tail is not None:
            await cursor.execute(READ_LAST_LINES, {**filters, "tail": tail})
            after = await cursor.fetchone()
    after_attempt, after_line = after or FROM_THE_START
    place = {"after_attempt": after_attempt, "after_line": after_line, "limit": limit}
    async with conn.cursor(row_factory=class_row(LogLine)) as reading:
        await reading.execute(READ_LINES, {**filters, **place})
        return await reading.fetchall()
