"""Named locks: exclusive, shared, or so many permits. Called by: enqueue, claim, finish and its kin, promote.

Exact under concurrency because of one rule: whoever takes, waits for or gives back a key holds that key's row in
`lock_keys` until the transaction ends, and reads the holders afterwards in a statement of its own. So a job that
decides to wait is seen by the holder that leaves, and two can never count the same free place. The unique permit in
`lock_holders` is the second wall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from holdfast.database.statements import Statement, Steps
from holdfast.errors import LockBusy
from holdfast.jobs.model import AttemptId, JobId, NewJob

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


class Want(NamedTuple):
    """One key that one job asks for, with how much company it allows."""

    job_id: JobId
    key: str
    most: int | None


class Holder(NamedTuple):
    """One place on a key that is taken."""

    key: str
    permit: int
    most: int | None
    job_id: JobId


@dataclass(slots=True)
class Admission:
    """Which jobs get all their keys, which places they take, and which keys the others must wait for."""

    jobs: list[JobId] = field(default_factory=list)
    places: list[Holder] = field(default_factory=list)
    waiting: list[Want] = field(default_factory=list)


def admit(wants: Mapping[JobId, Sequence[Want]], holders: Iterable[Holder]) -> Admission:
    """Decide who enters, in the given order. A key has room while its holders, the newcomer included, are no more
    than the smallest `most` that any of them asked for. Pure."""
    taken: dict[str, list[Holder]] = {}
    for holder in holders:
        taken.setdefault(holder.key, []).append(holder)
    result = Admission()
    for job_id, keys in wants.items():
        missing = [want for want in keys if not any(h.job_id == job_id for h in taken.get(want.key, ()))]
        busy = [want for want in missing if not _has_room(want, taken.get(want.key, ()))]
        if busy:
            result.waiting += busy
            continue
        result.jobs.append(job_id)
        for want in missing:
            place = Holder(want.key, _free_permit(taken.get(want.key, ())), want.most, job_id)
            taken.setdefault(want.key, []).append(place)
            result.places.append(place)
    return result


def _has_room(want: Want, holders: Sequence[Holder]) -> bool:
    limits = [limit for limit in (want.most, *(holder.most for holder in holders)) if limit is not None]
    return not limits or len(holders) < min(limits)


def _free_permit(holders: Sequence[Holder]) -> int:
    used = {holder.permit for holder in holders}
    return next(permit for permit in range(1, len(used) + 2) if permit not in used)


READ_WANTS = """
    SELECT job_id, key, most FROM holdfast.lock_wants WHERE job_id = ANY (%(jobs)s) ORDER BY key
"""
# In the order of the keys, so that two transactions never wait for each other.
HOLD_KEYS = """
    INSERT INTO holdfast.lock_keys (key) SELECT DISTINCT key FROM unnest(%(keys)s::text[]) AS key ORDER BY key
    ON CONFLICT (key) DO UPDATE SET key = excluded.key
"""
READ_HOLDERS = "SELECT key, permit, most, job_id FROM holdfast.lock_holders WHERE key = ANY (%(keys)s)"
BLOCK = """
    WITH waiting AS (
        UPDATE holdfast.lock_wants w SET waiting = true
        FROM unnest(%(jobs)s::bigint[], %(keys)s::text[]) AS busy(job_id, key)
        WHERE w.job_id = busy.job_id AND w.key = busy.key
    ), blocked AS (
        UPDATE holdfast.jobs SET state = 'blocked', waiting_for = 'lock'
        WHERE id = ANY (%(jobs)s) AND state = 'pending' RETURNING id, attempt_no
    )
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
    SELECT DISTINCT ON (id) id, 'block', 'blocked', attempt_no, 'lock ' || key
    FROM blocked JOIN unnest(%(jobs)s::bigint[], %(keys)s::text[]) AS busy(job_id, key) ON job_id = id
"""


async def block_where_busy(cursor: Cursor, jobs: Sequence[JobId]) -> Admission:
    """Let in who gets all its locks; the others wait, off the claim index. The keys stay held by this transaction."""
    await cursor.execute(READ_WANTS, {"jobs": list(jobs)})
    wants: dict[JobId, list[Want]] = {job_id: [] for job_id in jobs}
    for row in await cursor.fetchall():
        wants[row[0]].append(Want(*row))
    keys = sorted({want.key for listed in wants.values() for want in listed})
    if not keys:
        return Admission(jobs=list(jobs))
    await cursor.execute(HOLD_KEYS, {"keys": keys})
    await cursor.execute(READ_HOLDERS, {"keys": keys})
    admission = admit(wants, [Holder(*row) for row in await cursor.fetchall()])
    if admission.waiting:
        busy = admission.waiting
        await cursor.execute(BLOCK, {"jobs": [want.job_id for want in busy], "keys": [want.key for want in busy]})
    return admission


TAKE = """
    INSERT INTO holdfast.lock_holders (key, permit, most, job_id, attempt_id)
    SELECT * FROM unnest(%(keys)s::text[], %(permits)s::int[], %(mosts)s::int[], %(jobs)s::bigint[], %(attempts)s::uuid[])
"""
# Places that the job kept while it was not running: now they belong to this attempt.
TAKE_AGAIN = """
    UPDATE holdfast.lock_holders h SET attempt_id = mine.attempt_id
    FROM unnest(%(jobs)s::bigint[], %(attempts)s::uuid[]) AS mine(job_id, attempt_id)
    WHERE h.job_id = mine.job_id AND h.attempt_id IS NULL
"""


async def take(cursor: Cursor, admission: Admission, attempts: Mapping[JobId, AttemptId]) -> None:
    """Write down the places of `admission` for the attempts that were just claimed."""
    if not attempts:
        return
    await cursor.execute(TAKE_AGAIN, {"jobs": list(attempts), "attempts": list(attempts.values())})
    places = [place for place in admission.places if place.job_id in attempts]
    if places:
        await cursor.execute(
            TAKE,
            {
                "keys": [place.key for place in places],
                "permits": [place.permit for place in places],
                "mosts": [place.most for place in places],
                "jobs": [place.job_id for place in places],
                "attempts": [attempts[place.job_id] for place in places],
            },
        )


KEYS_OF_JOB = "SELECT key FROM holdfast.lock_wants WHERE job_id = %(job_id)s ORDER BY key"
# By attempt, never by job: a replaced attempt must not free what its successor holds. A job that holds a place without
# running (attempt null) is only ever ended by a guarded write on its own row, in this same transaction.
GIVE_BACK = """
    DELETE FROM holdfast.lock_holders h USING holdfast.lock_wants w
    WHERE h.job_id = %(job_id)s AND h.attempt_id IS NOT DISTINCT FROM %(attempt_id)s::uuid
      AND w.job_id = h.job_id AND w.key = h.key AND (%(ended)s OR w.when_busy = 'wait')
    RETURNING h.key
"""
KEEP_WITHOUT_RUNNING = "UPDATE holdfast.lock_holders SET attempt_id = NULL WHERE attempt_id = %(attempt_id)s"
STOP_WAITING = "UPDATE holdfast.lock_wants SET waiting = false WHERE job_id = %(job_id)s AND waiting"


KEYS_OF_JOBS = "SELECT DISTINCT key FROM holdfast.lock_wants WHERE job_id = ANY (%(jobs)s) ORDER BY key"


async def hold_keys_of(cursor: Cursor, jobs: list[JobId]) -> None:
    """For a transaction that ends several jobs: all their keys at once and in order, or it would meet another halfway."""
    await cursor.execute(KEYS_OF_JOBS, {"jobs": jobs})
    keys = [row[0] for row in await cursor.fetchall()]
    if keys:
        await cursor.execute(HOLD_KEYS, {"keys": keys})


async def give_back(cursor: Cursor, job_id: JobId, attempt_id: AttemptId | None, *, ended: bool, keep: bool) -> None:
    """Give back what the attempt held, and wake who waits for it. `keep`: an external engine works on under the locks;
    a lock with `reject` stays with the job until it has ended."""
    await cursor.execute(KEYS_OF_JOB, {"job_id": job_id})
    keys = [row[0] for row in await cursor.fetchall()]
    await cursor.execute(HOLD_KEYS, {"keys": keys})
    parameters = {"job_id": job_id, "attempt_id": attempt_id, "ended": ended}
    freed: list[str] = []
    if not keep:
        await cursor.execute(GIVE_BACK, parameters)
        freed = [row[0] for row in await cursor.fetchall()]
    await cursor.execute(KEEP_WITHOUT_RUNNING, parameters)
    if ended:
        await cursor.execute(STOP_WAITING, parameters)
    await wake_waiters(cursor, freed)


FIRST_WAITERS = """
    SELECT w.job_id, w.key, w.most
    FROM unnest(%(keys)s::text[]) AS k(key)
    CROSS JOIN LATERAL (
        SELECT w.* FROM holdfast.lock_wants w JOIN holdfast.jobs j ON j.id = w.job_id
        WHERE w.key = k.key AND w.waiting
          AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL)
        ORDER BY w.priority, w.job_id LIMIT 20
    ) AS w
    ORDER BY w.key, w.priority, w.job_id
"""
# SKIP LOCKED: a waiter that somebody is just cancelling or merging into is left to the sweep in promote.py.
WAKE = """
    WITH woken AS MATERIALIZED (
        SELECT id FROM holdfast.jobs
        WHERE id = ANY (%(jobs)s) AND state = 'blocked' AND waiting_for = 'lock' ORDER BY id FOR UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE holdfast.jobs j SET state = 'pending', waiting_for = NULL FROM woken w WHERE j.id = w.id
        RETURNING j.id, j.queue, j.attempt_no
    ), served AS (
        UPDATE holdfast.lock_wants w SET waiting = false FROM moved m WHERE w.job_id = m.id
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
        SELECT id, 'wake', 'pending', attempt_no, 'a lock came free' FROM moved
    )
    SELECT id, pg_notify('holdfast', queue) FROM moved
"""


async def wake_waiters(cursor: Cursor, keys: Sequence[str]) -> list[JobId]:
    """Let as many of the first waiters come back to the queue as there is room for. The caller holds the keys."""
    if not keys:
        return []
    await cursor.execute(FIRST_WAITERS, {"keys": list(keys)})
    waiters = [Want(*row) for row in await cursor.fetchall()]
    if not waiters:
        return []
    await cursor.execute(READ_HOLDERS, {"keys": list(keys)})
    holders = [Holder(*row) for row in await cursor.fetchall()]
    woken = admit({want.job_id: [want] for want in waiters}, holders).jobs
    await cursor.execute(WAKE, {"jobs": woken})
    return [row[0] for row in await cursor.fetchall()]


# From one key that somebody waits for to the next: the crowd behind a key and the keys that nobody wants are not walked over.
KEYS_WITH_ROOM = """
    WITH RECURSIVE k (key) AS (
        (SELECT key FROM holdfast.lock_wants WHERE waiting ORDER BY key LIMIT 1)
        UNION ALL
        SELECT (SELECT w.key FROM holdfast.lock_wants w WHERE w.waiting AND w.key > k.key ORDER BY w.key LIMIT 1)
        FROM k WHERE k.key IS NOT NULL
    )
    SELECT k.key FROM k
    CROSS JOIN LATERAL (SELECT w.most FROM holdfast.lock_wants w WHERE w.key = k.key AND w.waiting
                        ORDER BY w.priority, w.job_id LIMIT 1) AS first
    WHERE (SELECT count(*) FROM holdfast.lock_holders h WHERE h.key = k.key)
          < least(first.most, (SELECT min(h.most) FROM holdfast.lock_holders h WHERE h.key = k.key), 2147483647)
    LIMIT 100
"""


async def wake_forgotten(cursor: Cursor) -> list[JobId]:
    """The sweep: keys with room for somebody who waits."""
    await cursor.execute(KEYS_WITH_ROOM)
    keys = [row[0] for row in await cursor.fetchall()]
    if not keys:
        return []
    await cursor.execute(HOLD_KEYS, {"keys": keys})
    return await wake_waiters(cursor, keys)


# ---------------------------------------------------------------------------------------------------------------------
# At enqueue
# ---------------------------------------------------------------------------------------------------------------------

WANT_LOCK = """
    INSERT INTO holdfast.lock_wants (job_id, key, most, when_busy, priority)
    VALUES (%(job_id)s, %(key)s, %(most)s, %(when_busy)s, %(priority)s)
"""
HOLD_LOCK_KEY = """
    INSERT INTO holdfast.lock_keys (key) VALUES (%(key)s) ON CONFLICT (key) DO UPDATE SET key = excluded.key
"""
LEAVING = "('completed', 'failed', 'cancelled')"
# After HOLD_LOCK_KEY, and as a statement of its own so that it sees what the previous holder of the row committed.
# A holder that has ended is one that ends in this very transaction and gives its places back as the last thing that it does:
# its children, and what its `publish` enqueues, step into its place.
TAKE_LOCK_NOW = f"""
    WITH staying AS MATERIALIZED (
        SELECT h.permit, h.most FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
        WHERE h.key = %(key)s AND j.state NOT IN {LEAVING}
    )
    INSERT INTO holdfast.lock_holders AS place (key, permit, most, job_id)
    SELECT %(key)s, free.permit, %(most)s, %(job_id)s
    FROM (SELECT count(*) AS holders, min(most) AS least FROM staying) AS held,
         LATERAL (SELECT permit FROM generate_series(1, held.holders + 1) AS permit
                  WHERE permit NOT IN (SELECT s.permit FROM staying s) ORDER BY permit LIMIT 1) AS free
    WHERE held.holders < least(held.least, %(most)s) OR (held.least IS NULL AND %(most)s::int IS NULL)
    ON CONFLICT (key, permit) DO UPDATE SET most = excluded.most, job_id = excluded.job_id, attempt_id = NULL,
        taken_at = clock_timestamp()
    WHERE (SELECT j.state FROM holdfast.jobs j WHERE j.id = place.job_id) IN {LEAVING}
    RETURNING permit
"""
# The caller may catch the refusal and commit: nothing of the refused job may be left, or it would run after all.
UNMAKE = "DELETE FROM holdfast.jobs WHERE id = %(job_id)s"
FIND_LOCK_HOLDER = "SELECT job_id FROM holdfast.lock_holders WHERE key = %(key)s ORDER BY permit LIMIT 1"


def want(job: NewJob, job_id: JobId) -> Steps[None]:
    """Note what a new job asks for, as steps of its enqueue; what it would rather be rejected for is taken now."""
    for lock in sorted(job.locks, key=lambda lock: lock.key):  # one order for everybody: no deadlocks
        parameters = {
            "job_id": job_id,
            "key": lock.key,
            "most": lock.most,
            "when_busy": lock.when_busy,
            "priority": job.priority,
        }
        yield Statement(WANT_LOCK, parameters)
        if lock.when_busy == "reject":
            yield Statement(HOLD_LOCK_KEY, parameters)
            if not (yield Statement(TAKE_LOCK_NOW, parameters)):
                holder = yield Statement(FIND_LOCK_HOLDER, parameters)
                yield Statement(UNMAKE, parameters)
                raise LockBusy(lock.key, holder[0][0] if holder else None)
