"""Bulk actions: one action on all jobs that match a filter, with a dry run and in small batches. Called by: the API, and the
job that runs a bulk action.

Each job is changed in a separate transaction, so a bulk action can be stopped, resumed after a crash, and never locks thousands
of rows. A job that was changed does not match any more, so running the action again is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import HoldfastError, IllegalMove, NotFound, NotStale, Refused, UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import JobId
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun
from holdfast.jobs.views.filters import FILTERS, where
from holdfast.jobs.views.read import VIEW_COLUMNS, JobView

KIND = "holdfast.bulk"
QUEUE = "holdfast"
MOST = 100_000  # jobs of one action
BATCH = 500
LISTED_FAILURES = 100


class BulkAction(StrEnum):
    """The bulk actions."""

    CANCEL = "cancel"
    RETRY = "retry"
    RECOVER = "recover"


# Added to every filter: an action matches only jobs that it can change, and not those that it has changed.
MOVABLE = {
    BulkAction.CANCEL: "state IN ('blocked', 'pending', 'running', 'submitted') AND cancel_requested_at IS NULL",
    BulkAction.RETRY: "state IN ('failed', 'cancelled')",
    BulkAction.RECOVER: "worker_id IN (SELECT w.id FROM holdfast.workers w WHERE w.lease_until < clock_timestamp())",
}
# Without `q`: a search covers only the newest jobs, and those change while an action runs.
NAMES = tuple(name for name in FILTERS if name not in ("before", "q"))


def parse(text: str) -> dict[str, str]:
    """Parse a filter such as `state:failed kind:export`. Pure."""
    found = {}
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon or not value:
            raise UsageError(f"{word!r} is not a filter; write name:value, such as state:failed")
        found[name] = value
    return found


def condition(action: BulkAction, filters: Mapping[str, Any]) -> str:
    """The SQL condition of an action and its filter. Pure; the values stay parameters."""
    unknown = set(filters) - set(NAMES)
    if unknown:
        raise UsageError(f"no filter {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    if not any(value is not None for value in filters.values()):
        raise UsageError("a bulk action needs a filter; to match everything, use a queue or a state")
    return " AND ".join([where(filters), MOVABLE[action], f"kind <> '{KIND}'"])


COUNT = """
    SELECT kind, count(*), max(id) FROM (SELECT j.kind, j.id FROM holdfast.jobs j WHERE {condition} LIMIT %(most)s + 1) AS few
    GROUP BY kind
"""
SAMPLE = f"SELECT {VIEW_COLUMNS} FROM holdfast.jobs j WHERE {{condition}} ORDER BY id DESC LIMIT 5"


@dataclass(frozen=True, slots=True)
class Match:
    """The jobs that a bulk action would change now."""

    matched: int
    by_kind: dict[str, int]
    newest: int  # jobs with a larger id are not changed by the action
    sample: list[JobView]


async def dry_run(conn: psycopg.AsyncConnection[Any], action: BulkAction, filters: Mapping[str, Any]) -> Match:
    """Count the jobs that match, with a sample."""
    which = condition(action, filters)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT.format(condition=which), {**filters, "most": MOST})
        rows = await cursor.fetchall()
    async with conn.cursor(row_factory=class_row(JobView)) as views:
        await views.execute(SAMPLE.format(condition=which), dict(filters))
        sample = await views.fetchall()
    matched = sum(count for _, count, _ in rows)
    if matched > MOST:
        raise UsageError(f"more than {MOST:,} jobs match; narrow the filter")
    return Match(matched, {kind: count for kind, count, _ in rows}, max((newest for *_, newest in rows), default=0), sample)


NEXT = """
    SELECT id FROM holdfast.jobs j WHERE {condition} AND id > %(after)s AND id <= %(newest)s ORDER BY id LIMIT %(batch)s
"""


@dataclass(slots=True)
class Tally:
    """The progress of a bulk action."""

    done: int = 0
    failed: int = 0
    after: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


async def run_batch(
    conn: psycopg.AsyncConnection[Any],
    action: BulkAction,
    filters: Mapping[str, Any],
    tally: Tally,
    *,
    newest: int,
    actor: str,
    reason: str,
) -> bool:
    """Process the next batch. Returns whether there may be more. A job that cannot be changed is recorded as a failure."""
    statement = NEXT.format(condition=condition(action, filters))
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, {**filters, "after": tally.after, "newest": newest, "batch": BATCH})
        found = [JobId(row[0]) for row in await cursor.fetchall()]
    for job_id in found:
        try:
            await _one(conn, action, job_id, actor, reason)
            tally.done += 1
        except (IllegalMove, NotFound, NotStale, Refused) as error:
            _note(tally, job_id, error)
        tally.after = job_id
    return len(found) == BATCH


async def _one(conn: psycopg.AsyncConnection[Any], action: BulkAction, job_id: JobId, actor: str, reason: str) -> None:
    match action:
        case BulkAction.CANCEL:
            await cancel(conn, job_id, actor=actor, reason=reason)
        case BulkAction.RETRY:
            await rerun(conn, job_id, actor=actor, reason=reason)
        case BulkAction.RECOVER:
            await recover(conn, job_id, actor=actor, reason=reason)


def _note(tally: Tally, job_id: JobId, error: HoldfastError) -> None:
    tally.failed += 1
    if len(tally.failures) < LISTED_FAILURES:
        tally.failures.append({"job_id": job_id, "why": str(error)})
