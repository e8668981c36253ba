"""Read the log lines of a job's attempts. Called by: the API and clients. `jobs/logs.py` writes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple, get_args

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.jobs.logs import MOST_LINES, Level
from holdfast.jobs.model import JobId

LEVELS: Final[tuple[str, ...]] = get_args(Level)  # from the least important one


class LogLine(NamedTuple):
    """A stored log line. `at`: when it was written to the database; `said_at`: when it was logged, by the worker's clock."""

    attempt_no: int
    line_no: int
    at: datetime
    said_at: datetime
    level: str
    message: str
    fields: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """Its position among the lines of its job, to continue reading after it."""
        return self.attempt_no, self.line_no

    @property
    def id(self) -> str:
        """The same as text."""
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
    """Lines of a job in the order in which they were logged: those after a position, or the last `tail` of them."""
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
