"""Slots: at most one current job per slot, and one follow-up for all triggers that arrive meanwhile.

The current job of a slot is the one that was claimed last. It stays current after its end, so that its result can be found.
While it is live, no other job of the slot runs: the follow-up is blocked, and the end of the current job wakes it. A further
trigger finds the waiting follow-up of its kind and adds no job (`enqueue.py`). Only a claim makes a job current.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]

# A transaction that decides about a slot locks the slot until it ends, and reads the state afterwards in a separate statement:
# a claim before it decides to wait, an end before it reads the waiters. An advisory lock and not the row of the current job:
# the end holds that row while `publish` runs, and a claim that waits for it would delay other claims. Slots are locked in one
# order, like lock keys, and before them.
HOLD_SLOTS = """
    SELECT pg_advisory_xact_lock(number)
    FROM (SELECT DISTINCT hashtextextended('holdfast slot ' || slot, 0) AS number
          FROM unnest(%(slots)s::text[]) AS slot ORDER BY number) AS held
"""


async def hold(cursor: Cursor, slots: Iterable[str]) -> None:
    """Lock these slots until the transaction ends."""
    if wanted := list(slots):
        await cursor.execute(HOLD_SLOTS, {"slots": wanted})


# Rows are locked before slots and keys, so the rows that will be demoted are locked first.
HOLD_ENDED = """
    SELECT id FROM holdfast.jobs
    WHERE slot_key = ANY (%(slots)s) AND is_current AND state IN ('completed', 'failed', 'cancelled') ORDER BY id FOR UPDATE
"""
READ_CURRENT = "SELECT slot_key, id, state FROM holdfast.jobs WHERE slot_key = ANY (%(slots)s) AND is_current"
BLOCK = """
    WITH blocked AS (
        UPDATE holdfast.jobs SET state = 'blocked', waiting_for = 'slot'
        WHERE id = ANY (%(jobs)s) AND state = 'pending' RETURNING id, attempt_no, slot_key
    )
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
    SELECT id, 'block', 'blocked', attempt_no, 'slot ' || slot_key FROM blocked
"""


async def block_where_busy(cursor: Cursor, candidates: Mapping[JobId, str | None]) -> list[JobId]:
    """The candidates whose slot is free, or that need none; the others are blocked until the current job of the slot ends."""
    slots = sorted({slot for slot in candidates.values() if slot})
    if not slots:
        return list(candidates)
    await cursor.execute(HOLD_ENDED, {"slots": slots})
    await hold(cursor, slots)
    await cursor.execute(READ_CURRENT, {"slots": slots})
    busy = {slot: job_id for slot, job_id, state in await cursor.fetchall() if state not in ENDED}
    waiting = [job_id for job_id, slot in candidates.items() if slot in busy and busy[slot] != job_id]
    if waiting:
        await cursor.execute(BLOCK, {"jobs": waiting})
    return _one_a_slot({job_id: slot for job_id, slot in candidates.items() if job_id not in waiting})


def _one_a_slot(free: Mapping[JobId, str | None]) -> list[JobId]:
    """The first job of each slot, and all jobs without one. The others stay pending until the next claim. Pure."""
    taken: set[str] = set()
    first = []
    for job_id, slot in free.items():
        if slot is None or slot not in taken:
            first.append(job_id)
        if slot is not None:
            taken.add(slot)
    return first


# The condition on the state is checked on the row: a running job is never demoted.
DEMOTE_ENDED = """
    UPDATE holdfast.jobs SET is_current = false
    WHERE slot_key = ANY (%(slots)s) AND is_current AND state IN ('completed', 'failed', 'cancelled')
"""


async def demote_ended(cursor: Cursor, slots: Sequence[str | None]) -> None:
    """Clear `is_current` of ended jobs, before new jobs become current."""
    if slots:
        await cursor.execute(DEMOTE_ENDED, {"slots": list(slots)})


WAKE_FOLLOW_UP = """
    WITH woken AS MATERIALIZED (
        SELECT id FROM holdfast.jobs
        WHERE slot_key = %(slot)s AND NOT is_current AND state = 'blocked' AND waiting_for = 'slot'
        ORDER BY id FOR UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE holdfast.jobs j SET state = 'pending', waiting_for = NULL FROM woken w WHERE j.id = w.id
        RETURNING j.id, j.queue, j.attempt_no
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
        SELECT id, 'wake', 'pending', attempt_no, 'the slot came free' FROM moved
    )
    SELECT id, pg_notify('holdfast', queue) FROM moved
"""


async def wake_follow_up(cursor: Cursor, slot: str) -> None:
    """Wake the follow-up of the slot: its current job has ended in this transaction, which has locked the slot."""
    await cursor.execute(WAKE_FOLLOW_UP, {"slot": slot})


FREE_SLOTS = """
    SELECT f.slot_key FROM holdfast.jobs f
    -- The first line is the predicate of the index one_waiting_per_slot: jobs that are blocked for other reasons are not read.
    WHERE f.slot_key IS NOT NULL AND NOT f.is_current AND f.state IN ('blocked', 'pending')
      AND f.state = 'blocked' AND f.waiting_for = 'slot'
      AND NOT EXISTS (SELECT FROM holdfast.jobs c WHERE c.slot_key = f.slot_key AND c.is_current
                      AND c.state IN ('blocked', 'pending', 'running', 'submitted'))
    LIMIT 100
"""


async def wake_forgotten(cursor: Cursor) -> None:
    """The sweep: wake follow-ups whose slot has no live current job."""
    await cursor.execute(FREE_SLOTS)
    for (slot,) in dict.fromkeys(await cursor.fetchall()):
        await wake_follow_up(cursor, slot)


# A trigger that merges into a delayed job and is due earlier: the earlier time counts.
PULL_FORWARD = """
    UPDATE holdfast.jobs SET run_after = CASE WHEN due > clock_timestamp() THEN due END
    FROM (SELECT coalesce(%(due_at)s, clock_timestamp() + %(delay)s::interval)) AS wanted(due)
    WHERE id = %(twin)s AND run_after IS NOT NULL AND (due IS NULL OR due < run_after)
    RETURNING CASE WHEN %(hint)s THEN pg_notify('holdfast', CASE WHEN run_after IS NULL THEN queue ELSE '@' END) END
"""
