"""Slots: at most one current job per slot, and exactly one follow-up for whatever was triggered meanwhile.

The current job of a slot is the last one that was claimed; it stays current when it has ended, so that its result can be
found. While it lives nobody else of the slot runs: a follow-up waits, blocked, and is woken by its end. A second
trigger finds the waiting follow-up of its kind and adds none (`enqueue.py`). Only a claim makes a job current.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]

# Whoever decides about a slot holds it until the transaction ends, and looks afterwards in a statement of its own: a claim
# before it decides to wait, an end before it looks who waits. Not the row of the current job: its end has that for as long
# as a `publish` takes, and a claim that waited for it would keep others waiting. In one order, like keys, and before them.
HOLD_SLOTS = """
    SELECT pg_advisory_xact_lock(number)
    FROM (SELECT DISTINCT hashtextextended('holdfast slot ' || slot, 0) AS number
          FROM unnest(%(slots)s::text[]) AS slot ORDER BY number) AS held
"""


async def hold(cursor: Cursor, slots: Iterable[str]) -> None:
    """Until this transaction ends, nobody else decides to wait for these slots or looks who does."""
    if wanted := list(slots):
        await cursor.execute(HOLD_SLOTS, {"slots": wanted})


# Rows come before slots and keys, so the ones that are about to be demoted are held first.
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
    """Those of the candidates whose slot is free, or that need none; the others wait for its current job to end."""
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
    """The first of each slot, and all without one. The others are as they were: the next claim finds their slot taken. Pure."""
    taken: set[str] = set()
    first = []
    for job_id, slot in free.items():
        if slot is None or slot not in taken:
            first.append(job_id)
        if slot is not None:
            taken.add(slot)
    return first


# The guard on the state is the row's own: a running holder is never demoted, whatever the caller believes.
DEMOTE_ENDED = """
    UPDATE holdfast.jobs SET is_current = false
    WHERE slot_key = ANY (%(slots)s) AND is_current AND state IN ('completed', 'failed', 'cancelled')
"""


async def demote_ended(cursor: Cursor, slots: Sequence[str | None]) -> None:
    """Make room for the jobs that are about to become current."""
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
    """The current job of the slot has ended, in this transaction, which holds the slot: its follow-up may run."""
    await cursor.execute(WAKE_FOLLOW_UP, {"slot": slot})


FREE_SLOTS = """
    SELECT f.slot_key FROM holdfast.jobs f
    -- The first line is the predicate of one_waiting_per_slot: jobs that are blocked for other reasons are not walked over.
    WHERE f.slot_key IS NOT NULL AND NOT f.is_current AND f.state IN ('blocked', 'pending')
      AND f.state = 'blocked' AND f.waiting_for = 'slot'
      AND NOT EXISTS (SELECT FROM holdfast.jobs c WHERE c.slot_key = f.slot_key AND c.is_current
                      AND c.state IN ('blocked', 'pending', 'running', 'submitted'))
    LIMIT 100
"""


async def wake_forgotten(cursor: Cursor) -> None:
    """The sweep: follow-ups whose slot has no living current job."""
    await cursor.execute(FREE_SLOTS)
    for (slot,) in dict.fromkeys(await cursor.fetchall()):
        await wake_follow_up(cursor, slot)


# A trigger that comes while one waits for its time, and whose own is sooner: the sooner one counts.
PULL_FORWARD = """
    UPDATE holdfast.jobs SET run_after = CASE WHEN due > clock_timestamp() THEN due END
    FROM (SELECT coalesce(%(due_at)s, clock_timestamp() + %(delay)s::interval)) AS wanted(due)
    WHERE id = %(twin)s AND run_after IS NOT NULL AND (due IS NULL OR due < run_after)
    RETURNING CASE WHEN %(hint)s THEN pg_notify('holdfast', CASE WHEN run_after IS NULL THEN queue ELSE '@' END) END
"""
