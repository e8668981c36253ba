"""A loop's row: take it under a new term, renew its lease, write under the term, release it. Called by: `tick.py`,
`context.py`.

Each take increments the term, and every write of a tick checks the term on this row in the same transaction. So it does not
matter whether a holder knows that it was replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.crashpoints import crashpoint
from holdfast.database.statements import Statement, Steps
from holdfast.errors import TermLost
from holdfast.schedule.due import (
    Begin,
    BeginQueued,
    BeginRetry,
    Decision,
    GiveUp,
    Resume,
    Row,
    Skip,
    Wait,
    decide,
)
from holdfast.schedule.registry import Loop, Result
from holdfast.telemetry.log import log
from holdfast.timetable.due_times import next_due

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]
POLL_AGAIN = timedelta(seconds=1)  # after a row was locked by another transaction


# ---------------------------------------------------------------------------------------------------------------------
# Registering
# ---------------------------------------------------------------------------------------------------------------------

# An existing loop keeps its due time, pause and history, unless its timetable has changed.
ENSURE = """
    INSERT INTO holdfast.loops AS l (name, every, cron, timezone, catch_up, next_due_at)
    VALUES (%(name)s, %(every)s, %(cron)s, %(timezone)s, %(catch_up)s, %(first)s)
    ON CONFLICT (name) DO UPDATE
    SET every = excluded.every, cron = excluded.cron, timezone = excluded.timezone, catch_up = excluded.catch_up,
        next_due_at = %(following)s
    WHERE (l.every, l.cron, l.timezone, l.catch_up)
          IS DISTINCT FROM (excluded.every, excluded.cron, excluded.timezone, excluded.catch_up)
"""
RUN_AT_ONCE = """
    UPDATE holdfast.loops SET retry_at = clock_timestamp()
    WHERE name = %(name)s AND held_until IS NULL AND (retry_at > clock_timestamp()) IS NOT FALSE
"""
READ_TIMETABLES = "SELECT name, every, cron, timezone, catch_up FROM holdfast.loops"


async def ensure(conn: psycopg.AsyncConnection[Any], loops: Sequence[Loop]) -> None:
    """Insert a row for every loop. First due one interval from now, or at once with `first_run` or `is_needed`."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_TIMETABLES)
        there = {name: timetable for name, *timetable in await cursor.fetchall()}
        await cursor.execute("SELECT clock_timestamp()")
        (now,) = await cursor.fetchone() or (None,)
        for loop in loops:
            timetable = [loop.every, loop.cron, loop.timezone, loop.catch_up]
            if there.get(loop.name) == timetable:
                continue  # an upsert would lock the row even without a change, and a pass may be writing under it
            following = next_due(loop, now)
            named = dict(zip(("every", "cron", "timezone", "catch_up"), timetable, strict=True))
            first = now if loop.first_run == "at_once" else following
            await cursor.execute(ENSURE, {"name": loop.name, **named, "first": first, "following": following})
        for loop in loops:
            if loop.is_needed is not None and await _is_needed(conn, loop):
                await cursor.execute(RUN_AT_ONCE, {"name": loop.name})


async def _is_needed(conn: psycopg.AsyncConnection[Any], loop: Loop) -> bool:
    assert loop.is_needed is not None
    try:
        return await loop.is_needed(conn)
    except Exception as error:  # the loop's code: an error of one loop must not affect the others
        log.warning("loop_need_unknown", loop=loop.name, error=str(error))
        return False


# ---------------------------------------------------------------------------------------------------------------------
# Taking
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """The right to run one tick of a loop."""

    loop: str
    number: int
    holder: str
    run_id: int
    trigger: str
    due_at: datetime | None
    actor: str | None
    reason: str | None
    late: timedelta


class Taken(NamedTuple):
    """The result of an attempt to take a loop: a term, or how long to wait; and how many ticks were missed."""

    term: Term | None
    wait: timedelta
    missed: int


class _Timetable(NamedTuple):
    every: timedelta | None
    cron: str | None
    timezone: str


# SKIP LOCKED: a transaction that has locked the row is taking the tick, or is writing under its term.
READ_FOR_TAKING = """
    SELECT every, cron, timezone, catch_up, term, run_id, clock_timestamp(), next_due_at, retry_at, held_until,
           paused_at IS NOT NULL, queued_run_id
    FROM holdfast.loops WHERE name = %(name)s FOR UPDATE SKIP LOCKED
"""
READ_HELD_RUN = "SELECT tries, trigger = 'manual' FROM holdfast.loop_runs WHERE id = %(run_id)s"


async def take(conn: psycopg.AsyncConnection[Any], loop: Loop, holder: str) -> Taken:
    """Take the loop's row if it is due and no other process has it. `due.decide` decides; this function writes the decision."""
    missed = 0
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        while True:
            await cursor.execute(READ_FOR_TAKING, {"name": loop.name})
            found = await cursor.fetchone()
            crashpoint("sched.after_read")
            if found is None:
                return Taken(None, POLL_AGAIN, missed)
            term, run_id = found[4], found[5]
            decision, now = await _decide(cursor, found)
            match decision:
                case Wait(wait):
                    return Taken(None, wait, missed)
                case Skip(next_due_at, count):
                    await cursor.execute(SET_NEXT_DUE, {"name": loop.name, "next_due_at": next_due_at})
                    missed += count
                case GiveUp():
                    await cursor.execute(NOTE_ABANDONED, {"run_id": run_id, "name": loop.name})
                    await cursor.execute(LET_GO, {"name": loop.name, "retry_after": loop.retry_after})
                case Begin() | BeginRetry() | BeginQueued() | Resume():
                    missed += decision.missed if isinstance(decision, Begin) else 0
                    taken = await _begin(cursor, loop, holder, term + 1, run_id, decision, now)
                    crashpoint("sched.in_tx")
                    break
    crashpoint("sched.after_commit")
    return Taken(taken, timedelta(0), missed)


async def _decide(cursor: Cursor, found: tuple[Any, ...]) -> tuple[Decision, datetime]:
    every, cron, timezone, catch_up, _, run_id, now, next_due_at, retry_at, held_until, is_paused, queued_run_id = found
    tries, is_manual = 1, False
    if held_until is not None:
        await cursor.execute(READ_HELD_RUN, {"run_id": run_id})
        tries, is_manual = await cursor.fetchone() or (tries, is_manual)
    row = Row(now, next_due_at, retry_at, held_until, is_paused, queued_run_id, tries, is_manual)
    return decide(row, _Timetable(every, cron, timezone), catch_up=catch_up), now


SET_NEXT_DUE = "UPDATE holdfast.loops SET next_due_at = %(next_due_at)s WHERE name = %(name)s"


def _retry_at(failures: str) -> str:
    """When a failed tick is retried: after `retry_after`, then twice that, … at most an hour; never after the next tick. A
    manual run has no retry."""
    delay = f"""least(%(retry_after)s::interval * 2 ^ least(greatest({failures}, 0), 10),
                      greatest(%(retry_after)s::interval, interval '1 hour'))"""
    return f"""CASE WHEN (SELECT r.trigger FROM holdfast.loop_runs r WHERE r.id = run_id) = 'manual' THEN retry_at
                    WHEN clock_timestamp() + {delay} < next_due_at THEN clock_timestamp() + {delay} END"""


LET_GO = f"""
    UPDATE holdfast.loops SET holder = NULL, held_until = NULL, retry_at = {_retry_at("failures - 1")} WHERE name = %(name)s
"""
# A run whose holder stopped renewing its lease counts as a failure; one that a stopping process released has its outcome.
NOTE_ABANDONED = """
    WITH abandoned AS (
        UPDATE holdfast.loop_runs SET outcome = 'abandoned', finished_at = clock_timestamp(), error = 'its holder went silent'
        WHERE id = %(run_id)s AND outcome = 'running' RETURNING error
    )
    UPDATE holdfast.loops SET failures = failures + 1, last_outcome = 'abandoned', last_error = abandoned.error,
        last_finished_at = clock_timestamp()
    FROM abandoned WHERE name = %(name)s
"""
ADD_TICK = """
    INSERT INTO holdfast.loop_runs (name, trigger, due_at, term, holder, started_at, outcome)
    VALUES (%(name)s, 'schedule', %(due_at)s, %(term)s, %(holder)s, clock_timestamp(), 'running')
    RETURNING id, trigger, due_at, actor, reason
"""
# The tick that failed. If the last one succeeded, something else requested this run, and it is a new tick.
ADD_RETRY = """
    INSERT INTO holdfast.loop_runs (name, trigger, due_at, term, holder, started_at, outcome)
    SELECT %(name)s, 'schedule', coalesce((SELECT last.due_at FROM (
            SELECT due_at, outcome FROM holdfast.loop_runs WHERE name = %(name)s AND due_at IS NOT NULL ORDER BY id DESC LIMIT 1
        ) AS last WHERE last.outcome <> 'success'), %(retry_at)s), %(term)s, %(holder)s, clock_timestamp(), 'running'
    RETURNING id, trigger, due_at, actor, reason
"""
BEGIN_QUEUED = """
    UPDATE holdfast.loop_runs SET term = %(term)s, holder = %(holder)s, started_at = clock_timestamp(), outcome = 'running'
    WHERE id = %(run_id)s RETURNING id, trigger, due_at, actor, reason
"""
BEGIN_AGAIN = """
    INSERT INTO holdfast.loop_runs (name, trigger, due_at, tries, actor, reason, term, holder, started_at, outcome)
    SELECT name, trigger, due_at, tries + 1, actor, reason, %(term)s, %(holder)s, clock_timestamp(), 'running'
    FROM holdfast.loop_runs WHERE id = %(run_id)s
    RETURNING id, trigger, due_at, actor, reason
"""
HOLD = """
    UPDATE holdfast.loops
    SET term = %(term)s, holder = %(holder)s, held_until = clock_timestamp() + %(lease)s, run_id = %(run_id)s,
        next_due_at = coalesce(%(next_due_at)s, next_due_at),
        retry_at = CASE WHEN %(is_queued)s THEN retry_at END,
        queued_run_id = CASE WHEN queued_run_id = %(run_id)s THEN NULL ELSE queued_run_id END,
        last_started_at = clock_timestamp()
    WHERE name = %(name)s
"""


async def _begin(
    cursor: Cursor,
    loop: Loop,
    holder: str,
    term: int,
    held_run_id: int | None,
    decision: Begin | BeginRetry | BeginQueued | Resume,
    now: datetime,
) -> Term:
    """Write that this run begins under this term, and hold the row for it."""
    begin = {"name": loop.name, "term": term, "holder": holder}
    next_due_at = None
    match decision:
        case Begin():
            next_due_at = decision.next_due_at
            await cursor.execute(ADD_TICK, begin | {"due_at": decision.due_at})
        case BeginRetry(retry_at):
            await cursor.execute(ADD_RETRY, begin | {"retry_at": retry_at})
        case BeginQueued(run_id):
            await cursor.execute(BEGIN_QUEUED, begin | {"run_id": run_id})
        case Resume():
            await cursor.execute(NOTE_ABANDONED, {"run_id": held_run_id, "name": loop.name})
            await cursor.execute(BEGIN_AGAIN, begin | {"run_id": held_run_id})
    run = await cursor.fetchone()
    assert run is not None, f"loop {loop.name}: the run that was to begin is gone"
    run_id, trigger, due, actor, reason = run
    hold = {"run_id": run_id, "lease": loop.lease, "next_due_at": next_due_at, "is_queued": isinstance(decision, BeginQueued)}
    await cursor.execute(HOLD, begin | hold)
    planned = decision.retry_at if isinstance(decision, BeginRetry) else due
    return Term(loop.name, term, holder, run_id, trigger, due, actor, reason, now - planned if planned else timedelta(0))


# ---------------------------------------------------------------------------------------------------------------------
# Renewing, and writing under the term
# ---------------------------------------------------------------------------------------------------------------------

# Writers of the same term lock the row, too: then no other process can take it, and the next renewal succeeds.
RENEW = """
    WITH mine AS MATERIALIZED (
        SELECT name FROM holdfast.loops
        WHERE name = %(name)s AND term = %(term)s AND holder = %(holder)s FOR NO KEY UPDATE SKIP LOCKED
    ), renewed AS (
        UPDATE holdfast.loops l SET held_until = clock_timestamp() + %(lease)s
        FROM mine WHERE l.name = mine.name AND l.term = %(term)s AND l.holder = %(holder)s
    )
    SELECT EXISTS (SELECT FROM holdfast.loops WHERE name = %(name)s AND term = %(term)s AND holder = %(holder)s)
"""


async def renew(conn: psycopg.AsyncConnection[Any], term: Term, lease: timedelta) -> bool:
    """Renew the lease; False if another process has the row."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RENEW, {**_fence(term), "lease": lease})
        row = await cursor.fetchone()
    return row is not None and bool(row[0])


# FOR SHARE: no process can take the row before this transaction has ended, and the newest version of the row is read.
GUARD = """
    SELECT term FROM holdfast.loops WHERE name = %(name)s AND term = %(term)s AND holder = %(holder)s FOR SHARE
"""


def guard(term: Term) -> Steps[None]:
    """Bind a transaction to this term; `TermLost` if the term is over."""
    if not (yield Statement(GUARD, _fence(term))):
        raise TermLost(term.loop, term.number)


# ---------------------------------------------------------------------------------------------------------------------
# Ending
# ---------------------------------------------------------------------------------------------------------------------

END = f"""
    WITH mine AS (
        UPDATE holdfast.loops
        SET holder = NULL, held_until = NULL, last_finished_at = clock_timestamp(), last_outcome = %(outcome)s,
            last_error = %(error)s, failures = CASE WHEN %(outcome)s = 'success' THEN 0 ELSE failures + 1 END,
            last_success_at = CASE WHEN %(outcome)s = 'success' THEN clock_timestamp() ELSE last_success_at END,
            retry_at = CASE WHEN %(outcome)s <> 'success' THEN {_retry_at("failures")} END
        WHERE name = %(name)s AND term = %(term)s AND holder = %(holder)s
        RETURNING run_id, failures
    )
    UPDATE holdfast.loop_runs r
    SET outcome = %(outcome)s, finished_at = clock_timestamp(), error = %(error)s,
        items = %(items)s, failed_items = %(failed)s, skipped_items = %(skipped)s
    FROM mine WHERE r.id = mine.run_id
    RETURNING mine.failures
"""
# A run that a stopping process could not end: its lease ends now, and the next process that polls runs it again.
GIVE_BACK = """
    WITH mine AS (
        UPDATE holdfast.loops SET held_until = clock_timestamp(), last_outcome = 'interrupted', last_error = %(error)s
        WHERE name = %(name)s AND term = %(term)s AND holder = %(holder)s
        RETURNING run_id
    )
    UPDATE holdfast.loop_runs r SET outcome = 'interrupted', finished_at = clock_timestamp(), error = %(error)s
    FROM mine WHERE r.id = mine.run_id
    RETURNING 0
"""
READ_OUTCOME = "SELECT outcome FROM holdfast.loop_runs WHERE id = %(run_id)s AND term = %(term)s"


async def end(
    conn: psycopg.AsyncConnection[Any],
    term: Term,
    result: Result | None,
    error: str | None,
    *,
    retry_after: timedelta | None = None,
    again: bool = False,
) -> int:
    """End the run and release the row. Returns the number of consecutive failures. `TermLost` if the term is over.

    A failed tick is retried after `retry_after`, if the next one is further away. `again`: an earlier call may have been
    committed although its answer was lost; then its end stays.
    """
    outcome, counted = ("success" if error is None else "failed"), result or Result()
    fields = {"items": counted.items, "failed": counted.failed, "skipped": counted.skipped}
    row = await _one(conn, END, {**_fence(term), **fields, "outcome": outcome, "error": error, "retry_after": retry_after})
    if row is not None:
        return int(row[0])
    written = await _one(conn, READ_OUTCOME, {"run_id": term.run_id, "term": term.number}) if again else None
    if written != (outcome,):
        raise TermLost(term.loop, term.number)
    return 0


async def give_back(conn: psycopg.AsyncConnection[Any], term: Term, error: str) -> None:
    """Release the run for other processes at once. `TermLost` if another process has it."""
    if await _one(conn, GIVE_BACK, {**_fence(term), "error": error}) is None:
        raise TermLost(term.loop, term.number)


def _fence(term: Term) -> dict[str, Any]:
    return {"name": term.loop, "term": term.number, "holder": term.holder}


async def _one(conn: psycopg.AsyncConnection[Any], statement: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchone()
