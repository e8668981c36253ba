"""Make jobs: → pending | blocked. Called by: clients, `pipelines.py`, and `finish.py` for a job's children.

Everything happens in the caller's transaction: the job exists if and only if that transaction commits. An enqueue does not
wait for running jobs: the claim checks locks and slots later, in a separate short transaction. The exception is a lock with
`reject`, which must be decided at enqueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg

from holdfast.database.statements import Statement, Steps, connection_of, connection_of_sync, run_async, run_sync
from holdfast.errors import Draining, HoldfastError, IdempotencyConflict, NotFound
from holdfast.jobs import given, locks, slots
from holdfast.jobs.copying import copy, reserve_ids
from holdfast.jobs.model import APART, HOLDS, LOCKS, SLOT, Enqueued, JobId, NewJob, refuse_no_job
from holdfast.jobs.payload import refuse_bad_text, to_json
from holdfast.jobs.states import State
from holdfast.telemetry.trace import carrier

T = TypeVar("T")

CHANNEL = "holdfast"
LATER = "@"  # a hint that is not a queue name: a job was added that becomes due later

# One plain job, the most frequent call: it has no keys, so no unique index has to be checked.
ENQUEUE_PLAIN = """
    INSERT INTO holdfast.jobs (kind, queue, priority, payload, kind_version, max_attempts, max_crashes, max_runtime,
        pipeline_id, trace)
    SELECT %(kind)s, %(queue)s, %(priority)s, %(payload)s, %(kind_version)s, %(max_attempts)s, %(max_crashes)s, %(max_runtime)s,
        %(pipeline_id)s, %(trace)s
    WHERE NOT EXISTS (SELECT FROM holdfast.controls WHERE kind IN (%(kind)s, '*') AND drained_at IS NOT NULL)
    RETURNING id, CASE WHEN %(hint)s THEN pg_notify('holdfast', queue) END
"""
ENQUEUE = """
    INSERT INTO holdfast.jobs (id, kind, queue, priority, payload, kind_version, max_attempts, max_crashes, max_runtime,
        run_after, state, waiting_for, ties, idempotency_key, unique_key, unique_while, slot_key,
        pipeline_id, parent_id, step, parents_left, parents, if_parent_fails, trace)
    SELECT coalesce(%(id)s, nextval('holdfast.jobs_id_seq')),
        %(kind)s, %(queue)s, %(priority)s, %(payload)s, %(kind_version)s, %(max_attempts)s, %(max_crashes)s, %(max_runtime)s,
        -- NULL for a time in the past: the job is then on the claim index at once.
        (SELECT due FROM (SELECT coalesce(%(due_at)s, clock_timestamp() + %(delay)s::interval)) AS d(due)
         WHERE due > clock_timestamp()),
        %(state)s, %(waiting_for)s, %(ties)s, %(idempotency_key)s, %(unique_key)s, %(unique_while)s, %(slot_key)s,
        %(pipeline_id)s, %(parent_id)s, %(step)s, %(parents_left)s, %(parents)s, %(if_parent_fails)s, %(trace)s
    -- A drain refuses new jobs. Children are accepted: they belong to a job that exists and must be able to finish.
    WHERE %(parent_id)s::bigint IS NOT NULL
       OR NOT EXISTS (SELECT FROM holdfast.controls WHERE kind IN (%(kind)s, '*') AND drained_at IS NOT NULL)
    -- For every unique index: the existing job that caused the conflict is read afterwards.
    ON CONFLICT DO NOTHING
    -- '@': the job becomes due later.
    RETURNING id, CASE WHEN %(hint)s THEN pg_notify('holdfast', CASE WHEN run_after IS NULL THEN queue ELSE '@' END) END
"""

# The row stays locked until the caller commits. Claims skip locked rows, so the waiting job cannot start before the caller's
# data is visible. Therefore its run sees the data of this trigger, and no second job is needed.
HOLD_WAITING_TWIN = """
    SELECT id, slot_key = %(merges_in)s AND run_after IS NOT NULL FROM holdfast.jobs
    WHERE state IN ('blocked', 'pending') AND kind = %(kind)s
      AND ((slot_key = %(merges_in)s AND NOT is_current AND ties & 16 = 0) OR (unique_key = %(unique_key)s AND attempt_no = 0))
    ORDER BY id LIMIT 1 FOR UPDATE
"""
FIND_LIVE_TWIN = """
    SELECT id FROM holdfast.jobs
    WHERE kind = %(kind)s AND unique_key = %(unique_key)s AND state IN ('blocked', 'pending', 'running', 'submitted')
    ORDER BY id LIMIT 1
"""
FIND_BY_IDEMPOTENCY_KEY = """
    SELECT id, payload = %(payload)s::jsonb FROM holdfast.jobs
    WHERE kind = %(kind)s AND idempotency_key = %(idempotency_key)s
"""
# For a pipeline that was not built with `Pipeline`: jobs that share an id given by the caller.
ENSURE_PIPELINE = "INSERT INTO holdfast.pipelines (id, name) VALUES (%(id)s, %(name)s) ON CONFLICT DO NOTHING"
FIND_CHILD = "SELECT id FROM holdfast.jobs WHERE parent_id = %(parent_id)s AND step = %(step)s"
FIND_DRAIN = """
    SELECT kind, reason FROM holdfast.controls
    WHERE kind = ANY (%(kinds)s) AND drained_at IS NOT NULL ORDER BY kind DESC LIMIT 1
"""

# Locks the parents against `finish`, so that none can end unnoticed before this transaction commits.
TIE_TO_PARENTS = """
    WITH parents AS MATERIALIZED (
        SELECT id, state FROM holdfast.jobs WHERE id = ANY (%(after)s) ORDER BY id FOR UPDATE
    ), tied AS (
        UPDATE holdfast.jobs j SET ties = ties | 4 FROM parents p
        WHERE j.id = p.id AND p.state NOT IN ('completed', 'failed', 'cancelled')
    )
    SELECT id, state FROM parents
"""
# Only for parents that have not ended. (A job that ends in this same transaction and makes this one as its child counts its
# dependants down later in the transaction.)
ADD_DEPENDENCIES = """
    INSERT INTO holdfast.dependencies (parent_id, job_id)
    SELECT p.id, %(job_id)s FROM holdfast.jobs p
    WHERE p.id = ANY (%(after)s::bigint[]) AND p.state NOT IN ('completed', 'failed', 'cancelled')
"""

SAVE, UNDO, KEEP = "SAVEPOINT holdfast_enqueue", "ROLLBACK TO holdfast_enqueue", "RELEASE holdfast_enqueue"
# FOR UPDATE: of two bulk enqueues under one parent, the second sees the children of the first. A single child takes only
# FOR KEY SHARE, which keeps the parent from being deleted and waits for a bulk enqueue.
HOLD_PARENTS = "SELECT id FROM holdfast.jobs WHERE id = ANY (%(ids)s) ORDER BY id FOR UPDATE"
KEEP_PARENT = "SELECT id FROM holdfast.jobs WHERE id = ANY (%(ids)s) FOR KEY SHARE"
FIND_CHILDREN = """
    SELECT j.parent_id, j.step, j.id FROM unnest(%(parents)s::bigint[], %(steps)s::text[]) AS wanted(parent_id, step)
    JOIN holdfast.jobs j ON j.parent_id = wanted.parent_id AND j.step = wanted.step
"""
NOTIFY = "SELECT pg_notify('holdfast', queue) FROM unnest(%(queues)s::text[]) AS queue"


async def enqueue(conn: Any, job: NewJob, *, hint: bool = True) -> Enqueued:
    """Make one job in the transaction of `conn`: a psycopg connection, or an SQLAlchemy session or connection.

    With `hint`, idle workers are notified when the transaction commits; without it, they find the job when they poll.
    """
    refuse_no_job(job)
    return (await run_steps(conn, _enqueue_many([job], hint), in_one=not job.is_plain or job.pipeline_id is not None))[0]


async def enqueue_many(conn: Any, jobs: Sequence[NewJob], *, hint: bool = True) -> Sequence[Enqueued]:
    """Make many jobs in the transaction of `conn`, in the given order. Jobs without keys are inserted with COPY."""
    return await run_steps(conn, _enqueue_many(jobs, hint), in_one=True)


async def enqueue_payloads(
    conn: Any, like: NewJob, payloads: Iterable[str], count: int, *, hint: bool = True
) -> Sequence[Enqueued]:
    """Make many jobs that differ only in their payload, given as JSON text. This is the fastest way to enqueue.

    `payloads` may be a generator: it is consumed while earlier rows are sent. If it raises, the transaction fails.
    """
    assert like.is_copyable
    return await run_steps(conn, _copy([like] * count, payloads, hint), in_one=True)


def enqueue_sync(conn: Any, job: NewJob, *, hint: bool = True) -> Enqueued:
    """`enqueue` for a caller without an event loop."""
    refuse_no_job(job)
    return _run_sync(conn, _enqueue_many([job], hint), in_one=not job.is_plain or job.pipeline_id is not None)[0]


def enqueue_many_sync(conn: Any, jobs: Sequence[NewJob], *, hint: bool = True) -> Sequence[Enqueued]:
    """`enqueue_many` for a caller without an event loop."""
    return _run_sync(conn, _enqueue_many(jobs, hint), in_one=True)


async def run_steps(tx: Any, steps: Steps[Sequence[Enqueued]], *, in_one: bool) -> Sequence[Enqueued]:
    """Run enqueueing steps in the transaction of `tx`. With `in_one`, begin a transaction if `tx` is not in one."""
    conn = await connection_of(tx)
    if isinstance(conn, psycopg.Connection):
        return _run_sync(conn, steps, in_one=in_one)
    if in_one and _is_idle(conn):
        async with conn.transaction():
            return await run_async(conn, steps)
    return await run_async(conn, steps)


def _run_sync(tx: Any, steps: Steps[Sequence[Enqueued]], *, in_one: bool) -> Sequence[Enqueued]:
    conn = connection_of_sync(tx)
    if in_one and _is_idle(conn):
        with conn.transaction():
            return run_sync(conn, steps)
    return run_sync(conn, steps)


def _is_idle(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    """Whether no transaction is open: then several statements need a new one, so that they commit together."""
    return conn.autocommit and conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


# ---------------------------------------------------------------------------------------------------------------------
# The logic, as steps that any driver can run
# ---------------------------------------------------------------------------------------------------------------------

WORTH_A_COPY = 50


def enqueue_step(job: NewJob) -> Steps[Enqueued]:
    """One job, as steps: for callers that enqueue as part of a larger operation."""
    return (yield from _enqueue_one(job, to_json(job.payload), True))


def _enqueue_many(jobs: Sequence[NewJob], hint: bool) -> Steps[Sequence[Enqueued]]:
    jobs = given.listed("jobs", jobs, "render.new(…)")
    for job in jobs:
        refuse_no_job(job)
    if not jobs:
        return []
    payloads = [to_json(job.payload) for job in jobs]  # all of them are checked before the first is written
    pipelines = {job.pipeline_id: job.kind for job in jobs if job.pipeline_id is not None and job.parent_id is None}
    for pipeline_id in sorted(pipelines):
        yield Statement(ENSURE_PIPELINE, {"id": pipeline_id, "name": pipelines[pipeline_id]})
    if len(jobs) >= WORTH_A_COPY and all(job.is_copyable for job in jobs):
        has_children = any(job.parent_id is not None for job in jobs)
        return (yield from (_copy_new(jobs, payloads, hint) if has_children else _copy(jobs, payloads, hint)))
    if len(jobs) == 1:
        return [(yield from _enqueue_one(jobs[0], payloads[0], hint))]
    return (yield from all_or_none(_enqueue_each(jobs, payloads, hint)))


def _enqueue_each(jobs: Sequence[NewJob], payloads: Sequence[str], hint: bool) -> Steps[Sequence[Enqueued]]:
    """Insert in the order of the keys, so that two callers cannot deadlock; assign ids in the order of the jobs."""
    ids = yield from reserve_ids(len(jobs))
    made: dict[int, Enqueued] = {}
    for number in sorted(range(len(jobs)), key=lambda number: _key_order(jobs[number])):
        made[number] = yield from _enqueue_one(jobs[number], payloads[number], hint, ids[number])
    return [made[number] for number in range(len(jobs))]


def _key_order(job: NewJob) -> tuple[str, ...]:
    """The sort key of a bulk enqueue: the keys for which it may have to wait for another transaction. Pure."""
    keys = (job.idempotency_key, job.unique_key, job.slot_key, *sorted(lock.key for lock in job.locks))
    return (job.kind, *(key or "" for key in keys))


def all_or_none(steps: Steps[T]) -> Steps[T]:
    """Run these steps under a savepoint and roll back to it on an error: the caller may catch the error and commit."""
    yield Statement(SAVE)
    try:
        made = yield from steps
    except HoldfastError:
        yield Statement(UNDO)
        raise
    yield Statement(KEEP)
    return made


def _enqueue_plain(job: NewJob, payload: str, hint: bool) -> Steps[Enqueued]:
    refuse_bad_text(job.kind, "kind")
    refuse_bad_text(job.queue, "queue")
    parameters = _plain_parameters(job, payload) | {"hint": hint}
    rows = yield Statement(ENQUEUE_PLAIN, parameters)
    if not rows:
        yield from _refuse_if_draining([job.kind])
        raise AssertionError("a plain job was not inserted, although its kind is not drained")
    return Enqueued(JobId(rows[0][0]), created=True)


def _enqueue_one(job: NewJob, payload: str, hint: bool, new_id: int | None = None) -> Steps[Enqueued]:
    if job.is_plain and job.run_after is None and job.parent_id is None and new_id is None:
        return (yield from _enqueue_plain(job, payload, hint))
    for text, what in ((job.kind, "kind"), (job.queue, "queue"), (job.idempotency_key, "idempotency key"),
                       (job.unique_key, "unique key"), (job.slot_key, "slot key"), (job.step, "step")):  # fmt: skip
        refuse_bad_text(text, what)
    for lock in job.locks:
        refuse_bad_text(lock.key, "lock key")
    if job.parent_id is not None:
        yield from _require_parents(KEEP_PARENT, {job.parent_id})
    parents_left = (yield from _tie_to_parents(job)) if job.after else 0
    parameters = _parameters(job, payload, parents_left, hint) | {"id": new_id}
    while True:
        twin = None if job.is_plain else (yield from _find_twin(job, parameters))
        if twin is not None:
            return Enqueued(JobId(twin), created=False)
        rows = yield Statement(ENQUEUE, parameters)
        if rows:
            job_id = JobId(rows[0][0])
            break
        if job.parent_id is None:
            yield from _refuse_if_draining([job.kind])
        else:
            child = yield Statement(FIND_CHILD, parameters)
            if child:
                return Enqueued(JobId(child[0][0]), created=False)
        # A job with the same key was made, or ended, between the query and the insert: query again.
    if job.locks:
        yield from locks.want(job, job_id)
    if job.after:
        yield Statement(ADD_DEPENDENCIES, {"after": list(dict.fromkeys(job.after)), "job_id": job_id})
    return Enqueued(job_id, created=True)


def _plain_parameters(job: NewJob, payload: str) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "queue": job.queue,
        "priority": job.priority,
        "payload": payload,
        "kind_version": job.kind_version,
        "max_attempts": job.max_attempts,
        "max_crashes": job.max_crashes,
        "max_runtime": job.max_runtime,
        "pipeline_id": job.pipeline_id,
        "trace": carrier(),
    }


def _parameters(job: NewJob, payload: str, parents_left: int, hint: bool) -> dict[str, Any]:
    blocked = parents_left > 0
    return _plain_parameters(job, payload) | {
        "due_at": job.run_after if isinstance(job.run_after, datetime) else None,
        "delay": job.run_after if isinstance(job.run_after, timedelta) else None,
        "state": State.BLOCKED if blocked else State.PENDING,
        "waiting_for": "parents" if blocked else None,
        "ties": _ties(job),
        "merges_in": None if job.after else job.slot_key,  # a job with parents must not run before they have ended
        "idempotency_key": job.idempotency_key,
        "unique_key": job.unique_key,
        "unique_while": job.unique_while if job.unique_key else None,
        "slot_key": job.slot_key,
        "parent_id": job.parent_id,
        "step": job.step if job.parent_id is not None else None,
        "parents_left": parents_left,
        "parents": list(dict.fromkeys(job.after)) or None,
        "if_parent_fails": job.if_parent_fails,
        "hint": hint and not blocked,
    }


def _ties(job: NewJob) -> int:
    """The bits of `jobs.ties` for a new job. Pure."""
    locks = (LOCKS if job.locks else 0) | (HOLDS if job.rejects else 0)
    return locks | (SLOT if job.slot_key else 0) | (APART if job.slot_key and job.after else 0)


def _find_twin(job: NewJob, parameters: dict[str, Any]) -> Steps[int | None]:
    if job.idempotency_key:
        rows = yield Statement(FIND_BY_IDEMPOTENCY_KEY, parameters)
        if rows:
            job_id, same_payload = rows[0]
            if not same_payload:
                raise IdempotencyConflict(job.idempotency_key, job_id)
            return int(job_id)
    if job.unique_key or job.slot_key:
        rows = yield Statement(HOLD_WAITING_TWIN, parameters)
        if not rows and job.unique_key and job.unique_while == "live":
            rows = yield Statement(FIND_LIVE_TWIN, parameters)
        elif rows and rows[0][1]:
            yield Statement(slots.PULL_FORWARD, parameters | {"twin": rows[0][0]})
        if rows:
            return int(rows[0][0])
    return None


def _tie_to_parents(job: NewJob) -> Steps[int]:
    """How many parents have not ended yet. A parent that failed or was cancelled is an error, unless it is allowed."""
    wanted = sorted(set(job.after))
    rows = yield Statement(TIE_TO_PARENTS, {"after": wanted})
    missing = set(wanted) - {row[0] for row in rows}
    if missing:
        raise NotFound(f"no job with id {', '.join(map(str, sorted(missing)))} to wait for; enqueue the parents first")
    spoilt = [row[0] for row in rows if row[1] in (State.FAILED, State.CANCELLED)]
    if spoilt and job.if_parent_fails == "cancel":
        raise NotFound(f"parent {spoilt[0]} has already failed, so this job could never run; use if_parent_fails='run'")
    return sum(row[1] not in (State.COMPLETED, State.FAILED, State.CANCELLED) for row in rows)


def _require_parents(statement: str, wanted: set[int]) -> Steps[None]:
    rows = yield Statement(statement, {"ids": sorted(wanted)})
    missing = wanted - {row[0] for row in rows}
    if missing:
        raise NotFound(f"there is no job {min(missing)} to be the parent of this one")


def _refuse_if_draining(kinds: Sequence[str]) -> Steps[None]:
    if not kinds:
        return
    rows = yield Statement(FIND_DRAIN, {"kinds": [*kinds, "*"]})
    if rows:
        raise Draining(kinds[0] if rows[0][0] == "*" else rows[0][0], rows[0][1])


def _copy_new(jobs: Sequence[NewJob], payloads: Sequence[str], hint: bool) -> Steps[Sequence[Enqueued]]:
    """A bulk enqueue with children. A child whose step exists already, or occurs earlier in the bulk, is not made again."""
    for job in jobs:
        refuse_bad_text(job.step, "step")
    places = [(job.parent_id, job.step) if job.parent_id is not None else number for number, job in enumerate(jobs)]
    children = [place for place in places if isinstance(place, tuple)]
    yield from _require_parents(HOLD_PARENTS, {parent for parent, _ in children})
    parents, steps = [parent for parent, _ in children], [step for _, step in children]
    rows = yield Statement(FIND_CHILDREN, {"parents": parents, "steps": steps})
    known: dict[Any, JobId] = {(parent, step): JobId(job_id) for parent, step, job_id in rows}
    new = {place: number for number, place in reversed(list(enumerate(places))) if place not in known}
    numbers = sorted(new.values())
    if numbers:
        copied = yield from _copy([jobs[number] for number in numbers], [payloads[number] for number in numbers], hint)
        known.update((places[number], made.id) for number, made in zip(numbers, copied, strict=True))
    return [Enqueued(known[place], created=new.get(place) == number) for number, place in enumerate(places)]


def _copy(jobs: Sequence[NewJob], payloads: Iterable[str], hint: bool) -> Steps[Sequence[Enqueued]]:
    kinds, queues = {job.kind for job in jobs}, {job.queue for job in jobs}
    for text in kinds | queues:
        refuse_bad_text(text, "kind or queue")
    for key in {lock.key for job in jobs for lock in job.locks}:
        refuse_bad_text(key, "lock key")
    yield from _refuse_if_draining(sorted({job.kind for job in jobs if job.parent_id is None}))
    made = yield from copy(jobs, payloads)
    if hint:
        later = {LATER} if any(job.run_after is not None for job in jobs) else set()
        yield Statement(NOTIFY, {"queues": sorted(queues | later)})
    return made
