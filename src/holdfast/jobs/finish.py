"""End an attempt: running → completed | failed | cancelled | pending | submitted, only under its own attempt id.

Called by: the worker, for every outcome. There are two ways. Plain completions, which are nearly all, are written in batches:
one statement and one commit, history included. Everything else is one transaction for each attempt: the fence, the locks, the
slot, the dependants, the effects, the children and the caller's `publish` commit together or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from holdfast.crashpoints import crashpoint, dies_inside
from holdfast.database import arrays
from holdfast.database.alchemy import call_with_session, session_wanted
from holdfast.database.pool import LOST
from holdfast.errors import ClaimLost, PublishFailed, UsageError
from holdfast.jobs import dependants, effects, locks, pipelines, slots
from holdfast.jobs.model import DEPENDANTS, EFFECTS, LOCKS, SLOT, AttemptId, Claim, JobId
from holdfast.jobs.outcome import End, Publish
from holdfast.jobs.payload import storable, to_json
from holdfast.jobs.states import ENDED, State, is_legal

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]

# The guard on the row is id and attempt only. An additional condition on the state made the planner scan the whole table when
# the statistics had seen no running job.
# `ties = 0`: no lock, dependant or effect was attached meanwhile. A job with one is ended by FINISH instead.
COMPLETE_PLAIN = """
    WITH ended AS (
        UPDATE holdfast.jobs j
        SET state = 'completed', attempt_id = NULL, worker_id = NULL, finished_at = clock_timestamp(), result = mine.result,
            error = NULL, cause = NULL
        FROM unnest(%(ids)s::bigint[], %(attempts)s::uuid[], %(results)s::jsonb[]) AS mine(id, attempt_id, result)
        WHERE j.id = mine.id AND j.attempt_id = mine.attempt_id AND j.ties = 0
        RETURNING j.id, mine.attempt_id, j.attempt_no, j.claimed_at
    )
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at)
    SELECT id, 'complete', 'completed', attempt_no, attempt_id, %(worker_id)s, claimed_at FROM ended
    RETURNING job_id
"""


@dies_inside("complete.in_tx_after_update")
async def complete_plain(
    conn: psycopg.AsyncConnection[Any], claims: Sequence[Claim], results: Sequence[str | None]
) -> set[JobId]:
    """Complete a batch, each row with its own fence. Returns the completed ids; the others are lost or tied: see `finish`.

    Rows are updated in the order of the ids, as everywhere, so that two transactions cannot deadlock.
    """
    ids = [claim.id for claim in claims]
    if ids != sorted(ids):
        claims, results = zip(*sorted(zip(claims, results, strict=True), key=lambda pair: pair[0].id), strict=True)
        ids = [claim.id for claim in claims]
    parameters = {
        "ids": arrays.of_words(ids),
        "attempts": arrays.of_words([claim.attempt_id for claim in claims]),
        "results": arrays.of_texts(results) if any(results) else "{}",
        "worker_id": claims[0].worker_id,
    }
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COMPLETE_PLAIN, parameters, prepare=True)
        return {row[0] for row in await cursor.fetchall()}


# The next state is decided under the row's lock: a job with a cancel request returns neither to the queue nor to its engine,
# whatever its handler returned. The attempt is checked on the locked row and again by the update.
FINISH = """
    WITH held AS MATERIALIZED (
        SELECT id, CASE WHEN %(state)s IN ('pending', 'submitted') AND cancel_requested_at IS NOT NULL THEN 'cancelled'
                        ELSE %(state)s END AS goes_to
        FROM holdfast.jobs WHERE id = %(id)s AND attempt_id = %(attempt_id)s FOR UPDATE
    ), ended AS (
        UPDATE holdfast.jobs j
        SET state = goes_to, attempt_id = NULL, worker_id = NULL, deadline_at = NULL,
            run_after = CASE WHEN goes_to = 'pending' AND %(delay)s::interval > interval '0'
                             THEN clock_timestamp() + %(delay)s::interval END,
            finished_at = CASE WHEN goes_to IN ('completed', 'failed', 'cancelled') THEN clock_timestamp() END,
            errors = errors + %(errors)s,
            -- A completed job shows no error of earlier attempts; the history has them.
            error = CASE WHEN goes_to <> %(state)s THEN coalesce(cancel_reason, 'asked to stop')
                         WHEN goes_to = 'completed' OR %(cause)s::text IS NOT NULL THEN %(error)s
                         ELSE coalesce(%(error)s, error) END,
            cause = CASE WHEN goes_to <> %(state)s THEN 'cancelled' WHEN goes_to = 'completed' THEN NULL
                         ELSE coalesce(%(cause)s, cause) END,
            result = %(result)s,
            -- Progress restarts with the next attempt, continues while an engine has the work, and stays after the end.
            progress = CASE WHEN goes_to <> 'pending' THEN progress END,
            message = CASE WHEN goes_to <> 'pending' THEN message END,
            handle = CASE goes_to WHEN 'submitted' THEN %(handle)s::jsonb WHEN 'pending' THEN NULL ELSE handle END,
            poll_count = CASE goes_to WHEN 'submitted' THEN %(poll_count)s WHEN 'pending' THEN 0 ELSE poll_count END,
            poll_errors = %(poll_errors)s,
            -- At the latest when max_runtime is over: the sweep finds overdue jobs by this column (poll.py).
            next_poll_at = CASE WHEN goes_to = 'submitted' THEN least(clock_timestamp() + %(delay)s::interval,
                                coalesce(submitted_at, clock_timestamp()) + max_runtime) END,
            submitted_at = CASE goes_to WHEN 'submitted' THEN coalesce(submitted_at, clock_timestamp())
                                        WHEN 'pending' THEN NULL ELSE submitted_at END
        FROM held WHERE j.id = held.id AND j.attempt_id = %(attempt_id)s
        RETURNING j.id, j.ties, j.slot_key, j.attempt_no, j.claimed_at, j.state, j.queue, j.run_after
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at, reason, detail)
        SELECT id, CASE WHEN state = %(state)s THEN %(move)s ELSE 'cancel' END, state, attempt_no, %(attempt_id)s,
               %(worker_id)s, claimed_at, %(error)s, %(detail)s
        FROM ended
    )
    -- A job that is pending at once is announced: an idle worker might otherwise poll only after ten seconds.
    SELECT id, ties, slot_key, state,
           CASE WHEN state = 'pending' AND run_after IS NULL THEN pg_notify('holdfast', queue) END
    FROM ended
"""


# Children may also wait for other jobs. Those are older than the job that ends, so their rows are locked first.
HOLD_OLDER = dependants.holding("SELECT unnest(%(ids)s::bigint[])")


class Ended(NamedTuple):
    """An attempt that has ended in this transaction, and the ties of its job."""

    id: JobId
    ties: int
    slot_key: str | None
    state: str


async def finish(conn: psycopg.AsyncConnection[Any], claim: Claim, end: End) -> None:
    """Write the end of an attempt and all its consequences in one transaction. `ClaimLost` if it was replaced."""
    assert is_legal(end.move, State.RUNNING, end.state), f"{end.move} does not lead to {end.state}"
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        if end.prepare is not None:
            await _publish(conn, end.prepare)
        if older := end.waits_for:
            await cursor.execute(HOLD_OLDER, {"ids": [claim.id, *older]})
        await cursor.execute(FINISH, _parameters(claim, end))
        row = await cursor.fetchone()
        if row is None:  # the rollback removes what `prepare` has written
            raise ClaimLost(claim.id, claim.attempt_id, f"{end.move}")
        crashpoint("complete.in_tx_after_update")
        if end.then or end.join is not None:
            await pipelines.enqueue_children(conn, claim, end.then, end.join)
            crashpoint("complete.in_tx_after_child")
        if end.publish is not None:
            crashpoint("publish.in_tx_before")
            await _publish(conn, end.publish)
            crashpoint("publish.in_tx_after")
        # Last, because it locks the keys until the commit, and `publish` may take long.
        await untie(cursor, Ended(*row[:4]), claim.attempt_id)
        crashpoint("complete.in_tx_after_unlock")
    if claim.ties & LOCKS:
        crashpoint("unlock.after")


async def _publish(conn: psycopg.AsyncConnection[Any], publish: Publish) -> None:
    """Run the caller's code on our connection. While the connection works, its exceptions are errors of that code, even if they
    look like an unreachable database (such as OSError for a missing file): otherwise the end would be retried for ever."""
    wanted = session_wanted(publish)
    try:
        if wanted is not None:
            await call_with_session(conn, publish, wanted)
        else:
            published = publish(conn)
            if not inspect.isawaitable(published):
                raise UsageError("publish must be an async function: `async def publish(conn): …`")
            await published
    except (*LOST, OSError) as error:
        if conn.closed:
            raise
        raise PublishFailed(str(error)) from error
    _refuse_if_broken(conn.info.transaction_status)


def _refuse_if_broken(left: TransactionStatus) -> None:
    """Raise if publish broke the transaction and hid the error: an end that was not committed must not count as written."""
    if left is TransactionStatus.UNKNOWN:
        raise psycopg.OperationalError("the connection was lost while publish ran")
    if left is TransactionStatus.INERROR:
        raise PublishFailed("publish continued after a database error; let the error propagate, or use a savepoint: "
                            "`async with conn.transaction(): …`")  # fmt: skip
    if left is TransactionStatus.IDLE:
        raise PublishFailed("publish must neither commit nor roll back the transaction")


def _parameters(claim: Claim, end: End) -> dict[str, Any]:
    return {
        "id": claim.id,
        "attempt_id": claim.attempt_id,
        "worker_id": claim.worker_id,
        "move": end.move,
        "state": end.state,
        "delay": end.delay,
        "errors": end.errors,
        "error": _storable(end.error),
        "cause": end.cause,
        "result": None if end.result is None else to_json(end.result, what="result"),
        "handle": None if end.handle is None else to_json(end.handle, what="handle"),
        "poll_count": end.poll_count,
        "poll_errors": end.poll_errors,
        "detail": None if end.detail is None else Jsonb({key: _storable(text) for key, text in end.detail.items()}),
    }


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


async def untie(cursor: Cursor, ended: Ended, attempt_id: AttemptId | None) -> None:
    """Process the ties (locks, slot, dependants, effects) of an attempt that ended, in the transaction that ended it."""
    await untie_all(cursor, [(ended, attempt_id)])


async def untie_all(cursor: Cursor, ended: Sequence[tuple[Ended, AttemptId | None]]) -> None:
    """The same for several attempts that end in one transaction."""
    await _lock_ties(cursor, [one for one, _ in ended])
    for one, attempt_id in ended:
        await _untie(cursor, one, attempt_id)
    if parents := {one.id: State(one.state) for one, _ in ended if _has_dependants(one)}:
        for row in await dependants.settle(cursor, parents):  # direct and indirect dependants that are cancelled
            await _untie(cursor, Ended(*row)._replace(slot_key=None), None)


async def _lock_ties(cursor: Cursor, ended: Sequence[Ended]) -> None:
    """Lock rows in the order of their ids, then slots, then lock keys. Every transaction that ends jobs uses this order, so
    they cannot deadlock.

    A job that waits for its parents is never the current one of its slot, so the slots of dependants do not come free. They are
    not locked: Postgres has room for a limited number of such locks, and there may be any number of dependants.
    """
    parents = [one for one in ended if _has_dependants(one)]
    below: list[JobId] = []
    if parents:
        spoils = any(one.state != State.COMPLETED for one in parents)
        below = await dependants.hold_dependants(cursor, [one.id for one in parents], deep=spoils)
    await slots.hold(cursor, {slot for slot in map(_slot_left, ended) if slot})
    locked = [one.id for one in ended if one.ties & LOCKS]
    if below or len(locked) > 1:
        await locks.hold_keys_of(cursor, [*locked, *below])


def _slot_left(ended: Ended) -> str | None:
    """The slot that became free, if any."""
    return ended.slot_key if ended.ties & SLOT and ended.state in ENDED else None


def _has_dependants(ended: Ended) -> bool:
    """Whether other jobs wait for this one to end."""
    return bool(ended.ties & DEPENDANTS) and ended.state in ENDED


async def _untie(cursor: Cursor, ended: Ended, attempt_id: AttemptId | None) -> None:
    """Process all ties except the dependants."""
    if ended.ties & EFFECTS:
        await effects.settle(cursor, ended.id, attempt_id, State(ended.state))
    if ended.ties & LOCKS:
        keep = ended.state == State.SUBMITTED
        await locks.give_back(cursor, ended.id, attempt_id, ended=ended.state in ENDED, keep=keep)
    if slot := _slot_left(ended):
        await slots.wake_follow_up(cursor, slot)


# The outcome of a commit whose response was lost is read by the attempt id: the history row of an attempt is written in the
# transaction that ends it. An end written by the worker has no actor. A row with an actor was written by a rescue, a recover or
# a forced cancel, and does not show that the worker's end was written.
HOW_DID_IT_END = """
    SELECT EXISTS (SELECT FROM holdfast.history WHERE job_id = %(id)s AND attempt_id = %(attempt_id)s AND actor IS NULL),
           EXISTS (SELECT FROM holdfast.jobs WHERE id = %(id)s AND attempt_id = %(attempt_id)s)
"""


async def resolve_unknown(conn: psycopg.AsyncConnection[Any], claim: Claim) -> bool:
    """After a connection was lost during COMMIT: True if the end was written, False if the attempt still holds its job.

    Otherwise another process ended the attempt: `ClaimLost`.
    """
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOW_DID_IT_END, {"id": claim.id, "attempt_id": claim.attempt_id})
        row = await cursor.fetchone()
    assert row is not None
    ended, held = row
    if not ended and not held:
        raise ClaimLost(claim.id, claim.attempt_id, "finish")
    return bool(ended)
