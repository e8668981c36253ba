"""Read jobs: one, a page, or a count. Called by: the API, the command line and the console. Changes nothing.

Pages use keyset pagination, never OFFSET. Counts are exact up to a cap and marked beyond it, because an exact count of a
million rows reads all of them. Counts without an index are estimated beyond a limit, and marked as estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, dict_row, tuple_row

from holdfast.errors import NotFound, UsageError
from holdfast.jobs.model import JobId, Json
from holdfast.jobs.states import State
from holdfast.jobs.views.filters import LOCATED, MOST_LOOKED_AT, STATE_FILTERS, where
from holdfast.jobs.views.history import LAST_TRACEBACK

LONGEST_PAGE = 200
CAP = 10_000


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the API shows it."""

    id: int
    kind: str
    queue: str
    state: str
    priority: int
    payload: Json
    attempt_no: int
    attempt_id: str | None
    worker_id: str | None
    fence_token: int | None
    errors: int
    max_attempts: int
    crashes: int
    max_crashes: int
    progress: float | None
    message: str | None
    result: Json
    error: str | None
    cause: str | None
    waiting_for: str | None
    run_after: datetime | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    poll_count: int
    next_poll_at: datetime | None
    handle: Json
    slot_key: str | None
    is_current: bool
    pipeline_id: str | None
    parent_id: int | None
    step: str | None
    generation: int
    owner: str | None  # the principal that made it over HTTP; null: it was made in Python
    traceback: str | None = None  # of the newest attempt that raised; only when one job is read

    @property
    def is_quarantined(self) -> bool:
        """Whether it was failed because it crashed too many processes."""
        return self.state == State.FAILED and self.crashes >= self.max_crashes


VIEW_COLUMNS = """id, kind, queue, state, priority, payload, attempt_no, attempt_id::text, worker_id::text, fence_token, errors,
    max_attempts, crashes, max_crashes, progress, message, result, error, cause, waiting_for, run_after, created_at,
    claimed_at, finished_at, cancel_requested_at, poll_count, next_poll_at, handle, slot_key, is_current,
    pipeline_id::text, parent_id, step, generation, owner"""

GET_JOB = f"SELECT {VIEW_COLUMNS}, {LAST_TRACEBACK} FROM holdfast.jobs j WHERE id = %(id)s"


async def get_job(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> JobView:
    """One job, or `NotFound`."""
    async with conn.cursor(row_factory=class_row(JobView)) as cursor:
        await cursor.execute(GET_JOB, {"id": job_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no job {job_id}")
    return found


# Newest first.
LIST_JOBS = f"SELECT {VIEW_COLUMNS} FROM holdfast.jobs j WHERE {{filters}} ORDER BY id DESC LIMIT %(limit)s"


class Page(NamedTuple):
    """A page of jobs, and where the next one begins (None: there is none)."""

    jobs: list[JobView]
    before: int | None


async def list_jobs(conn: psycopg.AsyncConnection[Any], *, limit: int = 50, **filters: Any) -> Page:
    """A page of jobs, newest first. For the next page pass the `before` of this one. Filters: see `filters.py`."""
    if not 1 <= limit <= LONGEST_PAGE:
        raise UsageError(f"a page has 1 to {LONGEST_PAGE} jobs, not {limit}")
    statement = LIST_JOBS.format(filters=where(filters))
    async with conn.cursor(row_factory=class_row(JobView)) as cursor:
        await cursor.execute(statement, {**filters, "limit": limit + 1})
        found = await cursor.fetchall()
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


LOCATE = "SELECT {bounds}"


async def locate(conn: psycopg.AsyncConnection[Any], filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters with ids in place of the search for times, for callers that run several statements with them.

    A statement that searches by itself has a range that the planner cannot estimate: it reads with parallel workers, whose
    start takes longer than the range.
    """
    wanted = {name: LOCATED[name] for name in LOCATED if filters.get(name) is not None}
    if not wanted:
        return dict(filters)
    bounds = ", ".join(f"{search} AS {bound}" for bound, search in wanted.values())
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(LOCATE.format(bounds=bounds), {name: filters[name] for name in wanted})
        return {**filters, **(await cursor.fetchone() or {})}


COUNT_JOBS = "SELECT count(*) FROM (SELECT FROM holdfast.jobs j WHERE {filters} LIMIT %(cap)s + 1) AS few"


async def count_jobs(conn: psycopg.AsyncConnection[Any], *, cap: int = CAP, **filters: Any) -> Count:
    """How many jobs these filters find, exact up to `cap`."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_JOBS.format(filters=where(filters)), {**filters, "cap": cap})
        row = await cursor.fetchone()
    assert row is not None
    return Count(min(row[0], cap), row[0] > cap)


# Each branch reads at most CAP + 1 entries of an index with only its jobs. Pending jobs are on two indexes.
COUNTED = [
    *((state, STATE_FILTERS[state]) for state in State if state not in (State.PENDING, State.COMPLETED)),
    (State.PENDING, "state = 'pending' AND run_after IS NULL"),
    (State.PENDING, "state = 'pending' AND run_after IS NOT NULL"),
]
COUNT_STATES = "\nUNION ALL\n".join(
    f"SELECT '{state}', count(*) FROM (SELECT FROM holdfast.jobs j WHERE {condition} LIMIT %(cap)s + 1) AS few"
    for state, condition in COUNTED
)
# There is no index of completed jobs, because each completion would have to pay for it. They are counted among the oldest jobs,
# where they usually are, up to `most_looked_at` jobs; the second value is true if there are more jobs.
COUNT_COMPLETED = """
    SELECT count(*),
        CASE WHEN count(*) <= %(cap)s
             THEN (SELECT count(*) > %(most_looked_at)s FROM (SELECT FROM holdfast.jobs LIMIT %(most_looked_at)s + 1) AS few)
             ELSE false END
    FROM (SELECT FROM (SELECT state FROM holdfast.jobs ORDER BY id LIMIT %(most_looked_at)s) AS oldest
          WHERE state = 'completed' LIMIT %(cap)s + 1) AS few
"""
# The estimate of the last ANALYZE; autovacuum runs one when a twentieth of the table has changed.
ESTIMATE_COMPLETED = """
    SELECT (c.reltuples * known.share)::bigint
    FROM pg_class c JOIN pg_stats s ON s.schemaname = 'holdfast' AND s.tablename = 'jobs' AND s.attname = 'state'
    CROSS JOIN LATERAL unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS known(state, share)
    WHERE c.oid = 'holdfast.jobs'::regclass AND known.state = 'completed'
"""


@dataclass(frozen=True, slots=True)
class Count:
    """A count. `capped`: there are more; `estimated`: not all rows were counted."""

    count: int
    capped: bool
    estimated: bool = False

    def __str__(self) -> str:
        return f"{'~' if self.estimated else ''}{self.count:,}{'+' if self.capped else ''}"


async def count_states(
    conn: psycopg.AsyncConnection[Any], *, cap: int = CAP, most_looked_at: int = MOST_LOOKED_AT
) -> dict[State, Count]:
    """How many jobs are in each state, exact up to `cap`; the number of completed jobs in a large table may be an estimate."""
    found = dict.fromkeys(State, 0)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_STATES, {"cap": cap})
        for state, count in await cursor.fetchall():
            found[State(state)] += count
        await cursor.execute(COUNT_COMPLETED, {"cap": cap, "most_looked_at": most_looked_at})
        ((found[State.COMPLETED], is_part),) = await cursor.fetchall()
        if is_part:
            await cursor.execute(ESTIMATE_COMPLETED)
            found[State.COMPLETED] = max(found[State.COMPLETED], *(row[0] for row in await cursor.fetchall()), 0)
    counts = {state: Count(min(count, cap), count > cap) for state, count in found.items()}
    if is_part and not counts[State.COMPLETED].capped:
        counts[State.COMPLETED] = replace(counts[State.COMPLETED], estimated=True)
    return counts
