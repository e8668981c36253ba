"""One act on many jobs, named by a filter: looked at first, then done in small bites. Called by: the API, and its own job.

Not one large transaction: each job is moved by itself, under its own guard, so a bulk act can be stopped, resumed after a
crash, and never holds thousands of rows. What has been done no longer matches, so doing it again is harmless.
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
from holdfast.jobs.filters import FILTERS, where
from holdfast.jobs.model import JobId
from holdfast.jobs.read import VIEW_COLUMNS, JobView
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun

KIND = "holdfast.bulk"
QUEUE = "holdfast"
MOST = 100_000  # jobs of one act
BITE = 500
LISTED_FAILURES = 100


class BulkAction(StrEnum):
    """What can be done to many."""

    CANCEL = "cancel"
    RETRY = "retry"
    RECOVER = "recover"


# Whatever the filter says, an act only finds what it can move; so what it has moved, it does not find again.
MOVABLE = {
    BulkAction.CANCEL: "state IN ('blocked', 'pending', 'running', 'submitted') AND cancel_requested_at IS NULL",
    BulkAction.RETRY: "state IN ('failed', 'cancelled')",
    BulkAction.RECOVER: "worker_id IN (SELECT w.id FROM holdfast.workers w WHERE w.lease_until < clock_timestamp())",
}
# A search goes through the newest jobs, and who they are changes while an act is under way.
NAMES = tuple(name for name in FILTERS if name not in ("before", "q"))


def parse(text: str) -> dict[str, str]:
    """A filter as people write it: `state:failed kind:export`. Pure."""
    found = {}
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon or not value:
            raise UsageError(f"{word!r} is not a filter; write name:value, such as state:failed")
        found[name] = value
    return found


def condition(action: BulkAction, filters: Mapping[str, Any]) -> str:
    """The SQL condition of an act and its filter. Pure; the values stay parameters."""
    unknown = set(filters) - set(NAMES)
    if unknown:
        raise UsageError(f"no filter {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    if not any(value is not None for value in filters.values()):
        raise UsageError("a bulk act needs a filter; to mean everything, name a queue or a state")
    return " AND ".join([where(filters), MOVABLE[action], f"kind <> '{KIND}'"])


COUNT = """
    SELECT kind, count(*), max(id) FROM (SELECT j.kind, j.id FROM holdfast.jobs j WHERE {condition} LIMIT %(most)s + 1) AS few
    GROUP BY kind
"""
SAMPLE = f"SELECT {VIEW_COLUMNS} FROM holdfast.jobs j WHERE {{condition}} ORDER BY id DESC LIMIT 5"


@dataclass(frozen=True, slots=True)
class Match:
    """What a bulk act would touch now."""

    matched: int
    by_kind: dict[str, int]
    newest: int  # no job younger than this is touched later
    sample: list[JobView]


async def look(conn: psycopg.AsyncConnection[Any], action: BulkAction, filters: Mapping[str, Any]) -> Match:
    """The dry run."""
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
    SELECT id FROM holdfast.jobs j WHERE {condition} AND id > %(after)s AND id <= %(newest)s ORDER BY id LIMIT %(bite)s
"""


@dataclass(slots=True)
class Tally:
    """How far a bulk act is."""

    done: int = 0
    failed: int = 0
    after: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


async def bite(
    conn: psycopg.AsyncConnection[Any],
    action: BulkAction,
    filters: Mapping[str, Any],
    tally: Tally,
    *,
    newest: int,
    actor: str,
    reason: str,
) -> bool:
    """Do the next few; whether there may be more. A job that cannot be moved is noted, and the rest go on."""
    statement = NEXT.format(condition=condition(action, filters))
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, {**filters, "after": tally.after, "newest": newest, "bite": BITE})
        found = [JobId(row[0]) for row in await cursor.fetchall()]
    for job_id in found:
        try:
            await _one(conn, action, job_id, actor, reason)
            tally.done += 1
        except (IllegalMove, NotFound, NotStale, Refused) as error:
            _note(tally, job_id, error)
        tally.after = job_id
    return len(found) == BITE


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
