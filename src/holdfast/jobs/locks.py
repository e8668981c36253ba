"""Named locks: exclusive, shared, or with a number of permits. Called by: enqueue, claim, everything that ends jobs, promote.

One rule makes them exact under concurrency: a transaction that takes, waits for or releases a key locks that key's row in
`lock_keys` until it ends, and reads the holders and the line of waiters afterwards in a separate statement. So the holder that
leaves sees a job that has decided to wait, and two jobs can never take the same permit. The unique permit in `lock_holders` is
a second guard.

No job waits while it holds a lock: a claim takes all of a job's locks or none, and so does an enqueue with `reject`.
`admission.py` decides which jobs get their locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from holdfast.database.statements import Statement, Steps
from holdfast.errors import LockBusy
from holdfast.jobs.admission import HEAD, Admission, Holder, Want, admit, first_in_line
from holdfast.jobs.model import AttemptId, JobId, NewJob

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


READ_WANTS = """
    SELECT job_id, key, most, priority, waiting FROM holdfast.lock_wants WHERE job_id = ANY (%(jobs)s) ORDER BY key
"""
# In the order of the keys, so that two transactions cannot deadlock.
HOLD_KEYS = """
    INSERT INTO holdfast.lock_keys (key) SELECT DISTINCT key FROM unnest(%(keys)s::text[]) AS key ORDER BY key
    ON CONFLICT (key) DO UPDATE SET key = excluded.key
"""
# How long a woken job keeps its place in the line. If no worker claims it in this time, others need not wait for it.
KEEPS_ITS_PLACE = "10 seconds"
NOT_PAUSED = """NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL)"""
# The head of each line: jobs that wait, and jobs that were woken and will soon be claimed. Without jobs of paused kinds.
LINE = f"""
    SELECT w.key, NULL::int AS permit, w.most, w.job_id, w.priority
    FROM unnest(%(keys)s::text[]) AS k(key)
    CROSS JOIN LATERAL (
        SELECT w.* FROM holdfast.lock_wants w JOIN holdfast.jobs j ON j.id = w.job_id
        WHERE w.key = k.key AND w.waiting AND {NOT_PAUSED}
          AND ((j.state = 'blocked' AND j.waiting_for = 'lock')
               OR (j.state = 'pending' AND w.woken_at > clock_timestamp() - interval '{KEEPS_ITS_PLACE}'))
        ORDER BY w.priority, w.job_id LIMIT {HEAD}
    ) AS w
"""
READ_KEYS = f"""
    SELECT key, permit, most, job_id, NULL::smallint FROM holdfast.lock_holders WHERE key = ANY (%(keys)s)
    UNION ALL
    SELECT * FROM ({LINE}) AS line
"""
BLOCK = """
    WITH waiting AS (
        UPDATE holdfast.lock_wants w SET waiting = true, woken_at = NULL
        FROM unnest(%(jobs)s::bigint[], %(keys)s::text[]) AS busy(job_id, key)
        WHERE w.job_id = busy.job_id AND w.key = busy.key
    ), blocked AS (
        UPDATE holdfast.jobs SET state = 'blocked', waiting_for = 'lock'
        WHERE id = ANY (%(jobs)s) AND state = 'pending' RETURNING id, attempt_no
    )
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
    SELECT DISTINCT ON (id) id, 'block', 'blocked', attempt_no, 'lock ' || key
    FROM blocked JOIN unnest(%(jobs)s::bigint[], %(keys)s::text[]) AS busy(job_id, key) ON job_id = id
    ORDER BY id, key
"""
LEAVE_LINE = """
    UPDATE holdfast.lock_wants w SET waiting = false, woken_at = NULL
    FROM unnest(%(jobs)s::bigint[], %(keys)s::text[]) AS left_by(job_id, key)
    WHERE w.job_id = left_by.job_id AND w.key = left_by.key
"""


async def block_where_busy(cursor: Cursor, jobs: Sequence[JobId]) -> Admission:
    """Admit the jobs that get all their locks, and block the others. The keys stay locked by this transaction."""
    await cursor.execute(READ_WANTS, {"jobs": list(jobs)})
    wants: dict[JobId, list[Want]] = {job_id: [] for job_id in jobs}
    stood: set[tuple[JobId, str]] = set()
    for *row, waiting in await cursor.fetchall():
        wants[row[0]].append(Want(*row))
        if waiting:
            stood.add((row[0], row[1]))
    keys = sorted({want.key for listed in wants.values() for want in listed})
    if not keys:
        return Admission(jobs=list(jobs))
    await cursor.execute(HOLD_KEYS, {"keys": keys})
    await cursor.execute(READ_KEYS, {"keys": keys})
    admission = admit(wants, *_split(await cursor.fetchall()))
    if admission.waiting:
        busy = admission.waiting
        await cursor.execute(BLOCK, {"jobs": [want.job_id for want in busy], "keys": [want.key for want in busy]})
    left = sorted(stood - {(want.job_id, want.key) for want in admission.waiting})
    if left:
        await cursor.execute(LEAVE_LINE, {"jobs": [job_id for job_id, _ in left], "keys": [key for _, key in left]})
        admission.reopened = sorted({key for job_id, key in left if job_id not in admission.jobs})
    return admission


def _split(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Holder], list[Want]]:
    """Split the rows of READ_KEYS into holders and waiters. Pure."""
    line = [Want(job_id, key, most, priority) for key, permit, most, job_id, priority in rows if permit is None]
    return [Holder(*row[:4]) for row in rows if row[1] is not None], sorted(line, key=lambda want: want.turn)


TAKE = """
    INSERT INTO holdfast.lock_holders (key, permit, most, job_id, attempt_id)
    SELECT * FROM unnest(%(keys)s::text[], %(permits)s::int[], %(mosts)s::int[], %(jobs)s::bigint[], %(attempts)s::uuid[])
"""
# Permits that the job kept while it was not running: they now belong to this attempt.
TAKE_AGAIN = """
    UPDATE holdfast.lock_holders h SET attempt_id = mine.attempt_id
    FROM unnest(%(jobs)s::bigint[], %(attempts)s::uuid[]) AS mine(job_id, attempt_id)
    WHERE h.job_id = mine.job_id AND h.attempt_id IS NULL
"""


async def take(cursor: Cursor, admission: Admission, attempts: Mapping[JobId, AttemptId]) -> None:
    """Write the permits of `admission` for the attempts that were just claimed."""
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
# By attempt, never by job: a replaced attempt must not release what its successor holds. A job that holds a permit without
# running (attempt null) is only ended by a guarded write to its row in the same transaction.
GIVE_BACK = """
    DELETE FROM holdfast.lock_holders h USING holdfast.lock_wants w
    WHERE h.job_id = %(job_id)s AND h.attempt_id IS NOT DISTINCT FROM %(attempt_id)s::uuid
      AND w.job_id = h.job_id AND w.key = h.key AND (%(ended)s OR w.when_busy = 'wait')
    RETURNING h.key
"""
KEEP_WITHOUT_RUNNING = "UPDATE holdfast.lock_holders SET attempt_id = NULL WHERE attempt_id = %(attempt_id)s"
STOP_WAITING = """
    UPDATE holdfast.lock_wants SET waiting = false, woken_at = NULL WHERE job_id = %(job_id)s AND waiting RETURNING key
"""


KEYS_OF_JOBS = "SELECT DISTINCT key FROM holdfast.lock_wants WHERE job_id = ANY (%(jobs)s) ORDER BY key"


async def hold_keys_of(cursor: Cursor, jobs: list[JobId]) -> None:
    """For a transaction that ends several jobs: lock all their keys at once and in order, so that it cannot deadlock."""
    await cursor.execute(KEYS_OF_JOBS, {"jobs": jobs})
    keys = [row[0] for row in await cursor.fetchall()]
    if keys:
        await cursor.execute(HOLD_KEYS, {"keys": keys})


async def give_back(cursor: Cursor, job_id: JobId, attempt_id: AttemptId | None, *, ended: bool, keep: bool) -> None:
    """Release the locks of the attempt and wake the jobs that wait for them. `keep`: an external engine continues under the
    locks. A lock with `reject` stays with the job until it has ended."""
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
        freed += [row[0] for row in await cursor.fetchall()]  # jobs behind it in the line need not wait for it any more
    await wake_waiters(cursor, freed)


# SKIP LOCKED: a waiter that is being cancelled or merged into at this moment is woken later by the sweep in promote.py.
WAKE = """
    WITH woken AS MATERIALIZED (
        SELECT id FROM holdfast.jobs
        WHERE id = ANY (%(jobs)s) AND state = 'blocked' AND waiting_for = 'lock' ORDER BY id FOR UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE holdfast.jobs j SET state = 'pending', waiting_for = NULL FROM woken w WHERE j.id = w.id
        RETURNING j.id, j.queue, j.attempt_no
    ), served AS (
        UPDATE holdfast.lock_wants w SET woken_at = clock_timestamp() FROM moved m WHERE w.job_id = m.id AND w.waiting
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
        SELECT id, 'wake', 'pending', attempt_no, 'a lock came free' FROM moved
    )
    SELECT id, pg_notify('holdfast', queue) FROM moved
"""


READ_HOLDERS = "SELECT key, permit, most, job_id FROM holdfast.lock_holders WHERE key = ANY (%(keys)s)"


async def wake_waiters(cursor: Cursor, keys: Sequence[str]) -> list[JobId]:
    """Return the first jobs of each line to the queue, as many as fit. The caller has locked the keys."""
    if not keys:
        return []
    await cursor.execute(LINE, {"keys": list(keys)})
    _, line = _split(await cursor.fetchall())
    if not line:
        return []
    await cursor.execute(READ_HOLDERS, {"keys": list(keys)})
    holders = [Holder(*row) for row in await cursor.fetchall()]
    await cursor.execute(WAKE, {"jobs": first_in_line(holders, line)})
    return [row[0] for row in await cursor.fetchall()]


# A skip scan over keys with waiters: neither all waiters of a key nor keys without waiters are read. The first job of a line
# that is not woken yet decides, as in `first_in_line`: jobs behind it cannot get the lock before it.
KEYS_WITH_ROOM = f"""
    WITH RECURSIVE k (key) AS (
        (SELECT key FROM holdfast.lock_wants WHERE waiting ORDER BY key LIMIT 1)
        UNION ALL
        SELECT (SELECT w.key FROM holdfast.lock_wants w WHERE w.waiting AND w.key > k.key ORDER BY w.key LIMIT 1)
        FROM k WHERE k.key IS NOT NULL
    )
    SELECT k.key FROM k
    CROSS JOIN LATERAL (SELECT w.most FROM holdfast.lock_wants w JOIN holdfast.jobs j ON j.id = w.job_id
                        WHERE w.key = k.key AND w.waiting AND j.state = 'blocked' AND j.waiting_for = 'lock' AND {NOT_PAUSED}
                        ORDER BY w.priority, w.job_id LIMIT 1) AS first
    WHERE (SELECT count(*) FROM holdfast.lock_holders h WHERE h.key = k.key)
          < least(first.most, (SELECT min(h.most) FROM holdfast.lock_holders h WHERE h.key = k.key), 2147483647)
    LIMIT 100
"""


async def wake_forgotten(cursor: Cursor) -> list[JobId]:
    """The sweep: wake waiters of keys that have room for the first of their line."""
    await cursor.execute(KEYS_WITH_ROOM)
    keys = [row[0] for row in await cursor.fetchall()]
    if not keys:
        return []
    await cursor.execute(HOLD_KEYS, {"keys": keys})
    return await wake_waiters(cursor, keys)


# ---------------------------------------------------------------------------------------------------------------------
# At enqueue
# ---------------------------------------------------------------------------------------------------------------------

WANT_LOCKS = """
    INSERT INTO holdfast.lock_wants (job_id, key, most, when_busy, priority)
    SELECT %(job_id)s, key, most, when_busy, %(priority)s
    FROM unnest(%(keys)s::text[], %(mosts)s::int[], %(when_busy)s::text[]) AS asked(key, most, when_busy)
"""
HOLD_LOCK_KEY = """
    INSERT INTO holdfast.lock_keys (key) VALUES (%(key)s) ON CONFLICT (key) DO UPDATE SET key = excluded.key
"""
LEAVING = "('completed', 'failed', 'cancelled')"
# A separate statement after HOLD_LOCK_KEY, so that it sees what the previous transaction with the row lock committed.
# A holder that has ended is ending in this same transaction, and releases its permits at the end of it: its children, and jobs
# that its `publish` enqueues, take over its permits before all waiters.
READ_STAYING = f"""
    SELECT h.key, h.permit, h.most, h.job_id, NULL::smallint
    FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
    WHERE h.key = ANY (%(keys)s) AND j.state NOT IN {LEAVING}
    UNION ALL
    SELECT * FROM ({LINE}) AS line
    WHERE NOT EXISTS (SELECT FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
                      WHERE h.key = line.key AND j.state IN {LEAVING})
"""
TAKE_NOW = f"""
    WITH wanted AS ({WANT_LOCKS})
    INSERT INTO holdfast.lock_holders AS place (key, permit, most, job_id)
    SELECT key, permit, most, %(job_id)s
    FROM unnest(%(keys)s::text[], %(permits)s::int[], %(mosts)s::int[]) AS mine(key, permit, most)
    ON CONFLICT (key, permit) DO UPDATE SET most = excluded.most, job_id = excluded.job_id, attempt_id = NULL,
        taken_at = clock_timestamp()
    WHERE (SELECT j.state FROM holdfast.jobs j WHERE j.id = place.job_id) IN {LEAVING}
    RETURNING permit
"""
# The caller may catch the error and commit, so the refused job must be deleted, or it would run.
UNMAKE = "DELETE FROM holdfast.jobs WHERE id = %(job_id)s"


def want(job: NewJob, job_id: JobId) -> Steps[None]:
    """Write the locks that a new job needs, as steps of its enqueue. With `reject` it gets all its locks now, or `LockBusy`: if
    it held some and waited for others, it could deadlock with another job."""
    locks = sorted(job.locks, key=lambda lock: lock.key)  # one order for all: no deadlocks
    parameters = {
        "job_id": job_id,
        "priority": job.priority,
        "keys": [lock.key for lock in locks],
        "mosts": [lock.most for lock in locks],
        "when_busy": ["reject" if job.rejects else "wait"] * len(locks),
    }
    if not job.rejects:
        yield Statement(WANT_LOCKS, parameters)
        return
    for lock in locks:
        yield Statement(HOLD_LOCK_KEY, {"key": lock.key})
    holders, line = _split((yield Statement(READ_STAYING, parameters)))
    admission = admit({job_id: [Want(job_id, lock.key, lock.most, job.priority) for lock in locks]}, holders, line)
    if admission.waiting:
        yield Statement(UNMAKE, parameters)
        raise _refusal(admission.waiting[0], holders, line)
    taken = yield Statement(TAKE_NOW, parameters | {"permits": [place.permit for place in admission.places]})
    assert len(taken) == len(locks), "the keys are locked, so no other transaction can have taken these permits"


def _refusal(busy: Want, holders: Sequence[Holder], line: Sequence[Want]) -> LockBusy:
    """The error with the job that holds the lock, or the first that waits for it. Pure."""
    held = sorted((holder.permit, holder.job_id) for holder in holders if holder.key == busy.key)
    if held:
        return LockBusy(busy.key, held[0][1])
    return LockBusy(busy.key, next((want.job_id for want in line if want.key == busy.key), None), waits=True)
