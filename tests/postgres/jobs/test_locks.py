"""Named locks: exclusive, shared, permits; reject or wait; released only by their holder."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from factories import (
    add,
    column,
    end,
    everything,
    hold,
    holders_of,
    job,
    lose,
    make_due,
    moves_of,
    never_wait,
    poll,
    replace,
    rows,
    silence,
    start_worker,
    state_of,
    submit,
    take,
    value,
    waits,
)
from holdfast.errors import LockBusy
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.control import pause, resume
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import COMPLETED, Done, Fail, Retry, Snooze, Submitted, released
from holdfast.jobs.promote import wake_forgotten
from holdfast.jobs.recover import recover
from holdfast.jobs.rescue import rescue

EXCLUSIVE, SHARED = Lock("t"), Lock("t", most=None)
REJECT = Lock("t", when_busy="reject")


async def _try(conn: Any, job_id: int) -> Any:
    return await claim_by_id(conn, await start_worker(conn), job_id)  # type: ignore[arg-type]


async def _waiting(conn: Any, *locks: Lock, **fields: Any) -> int:
    """A job that came to a busy lock and waits for it."""
    job_id = await add(conn, locks=locks, **fields)
    assert await _try(conn, job_id) is None
    assert (await job(conn, job_id)).waiting_for == "lock"
    return job_id


# ---------------------------------------------------------------------------------------------------------------------
# Waiting
# ---------------------------------------------------------------------------------------------------------------------


async def test_exclusive_lock_has_one_holder_and_the_next_job_waits(conn: Any) -> None:
    """K-26."""
    first = await hold(conn, locks=(EXCLUSIVE,))
    second = await add(conn, locks=(EXCLUSIVE,))

    assert await _try(conn, second) is None

    found = await job(conn, second)
    assert (found.state, found.waiting_for, found.attempt_no) == ("blocked", "lock", 0), "a refused claim is no attempt"
    assert await holders_of(conn, "t") == [first.id]
    assert await moves_of(conn, second) == ["block"]


async def test_waiting_job_is_off_the_claim_index(conn: Any) -> None:
    await hold(conn, locks=(EXCLUSIVE,))
    await _waiting(conn, EXCLUSIVE)
    before = await everything(conn)
    worker = await start_worker(conn)

    assert await claim(conn, worker, kinds=["k"]) == []

    await conn.execute("DELETE FROM holdfast.workers WHERE id = %s", [worker])
    assert await everything(conn) == before, "it is not even looked at"


ENDS: dict[str, object] = {
    "completed": None,
    "failed": Fail("no"),
    "retried": Retry("busy"),
    "snoozed": Snooze(timedelta(seconds=1)),
    "failed by surprise": ValueError("odd"),
}


@pytest.mark.parametrize("ended_with", ENDS.values(), ids=ENDS.keys())
async def test_end_of_an_attempt_releases_locks_and_wakes_the_next_job(conn: Any, ended_with: object) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await _waiting(conn, EXCLUSIVE)

    await end(conn, holder, ended_with)

    assert await holders_of(conn, "t") == []
    assert await state_of(conn, waiting) == "pending"
    assert await moves_of(conn, waiting) == ["block", "wake"]
    taken = await take(conn, waiting)
    assert await holders_of(conn, "t") == [taken.id]


async def test_release_wake_and_finish_are_one_transaction(conn: Any) -> None:
    """Promise 3: the histories of both jobs carry the same transaction."""
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await _waiting(conn, EXCLUSIVE)

    await end(conn, holder)

    found = await rows(
        conn, "SELECT DISTINCT xid::text FROM holdfast.history WHERE job_id IN (%s, %s) AND move <> 'block'", holder.id, waiting
    )
    assert len(found) == 1


async def test_waiting_jobs_are_woken_by_priority_and_then_by_age(conn: Any) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    late = await _waiting(conn, EXCLUSIVE, priority=5)
    normal, next_ = await _waiting(conn, EXCLUSIVE), await _waiting(conn, EXCLUSIVE)
    urgent = await _waiting(conn, EXCLUSIVE, priority=-5)

    served = []
    for _ in range(4):
        await end(conn, holder)
        (woken,) = await rows(conn, "SELECT id FROM holdfast.jobs WHERE state = 'pending'")
        served.append(woken[0])
        holder = await take(conn, woken[0])

    assert served == [urgent, normal, next_, late]


async def test_wake_stops_at_the_number_of_free_permits(conn: Any) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    for _ in range(4):
        await _waiting(conn, EXCLUSIVE)

    await end(conn, holder)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'pending'") == 1


async def test_woken_job_that_finds_the_lock_busy_waits_again(conn: Any) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await _waiting(conn, EXCLUSIVE)
    await end(conn, holder)
    overtaker = await hold(conn, locks=(EXCLUSIVE,), priority=-1)

    assert await _try(conn, waiting) is None
    await end(conn, overtaker)

    assert (await take(conn, waiting)).attempt_no == 1


async def test_free_lock_is_taken_at_claim(conn: Any) -> None:
    first = await hold(conn, locks=(EXCLUSIVE,))
    await end(conn, first)
    second = await hold(conn, locks=(EXCLUSIVE,))

    assert await holders_of(conn, "t") == [second.id]


# ---------------------------------------------------------------------------------------------------------------------
# Company
# ---------------------------------------------------------------------------------------------------------------------


async def test_shared_lock_has_any_number_of_holders(conn: Any) -> None:
    readers = [(await hold(conn, locks=(SHARED,))).id for _ in range(5)]

    assert await holders_of(conn, "t") == readers


async def test_exclusive_waits_for_all_shared_holders(conn: Any) -> None:
    readers = [await hold(conn, locks=(SHARED,)) for _ in range(2)]
    writer = await _waiting(conn, EXCLUSIVE)

    await end(conn, readers[0])
    still = await state_of(conn, writer)
    await end(conn, readers[1])

    assert (still, await state_of(conn, writer)) == ("blocked", "pending")
    await take(conn, writer)
    await _waiting(conn, SHARED)


async def test_waiting_shared_jobs_are_woken_together(conn: Any) -> None:
    writer = await hold(conn, locks=(EXCLUSIVE,))
    readers = [await _waiting(conn, SHARED) for _ in range(3)]

    await end(conn, writer)

    assert {await state_of(conn, reader) for reader in readers} == {"pending"}


async def test_permits_are_exact(conn: Any) -> None:
    permit = Lock("t", most=3)
    claims = [await hold(conn, locks=(permit,)) for _ in range(3)]
    fourth = await _waiting(conn, permit)

    await end(conn, claims[1])
    await take(conn, fourth)

    assert sorted(await holders_of(conn, "t")) == [claims[0].id, claims[2].id, fourth]
    await _waiting(conn, permit)
    assert await rows(conn, "SELECT permit FROM holdfast.lock_holders ORDER BY permit") == [(1,), (2,), (3,)]


async def test_strictest_permit_count_applies(conn: Any) -> None:
    three, two = await hold(conn, locks=(Lock("t", most=3),)), await hold(conn, locks=(Lock("t", most=2),))
    await _waiting(conn, Lock("t", most=1))
    await _waiting(conn, Lock("t", most=3)), await _waiting(conn, SHARED)

    assert await holders_of(conn, "t") == [three.id, two.id]


async def test_a_job_gets_all_of_its_locks_or_none(conn: Any) -> None:
    holder = await hold(conn, locks=(Lock("b"),))
    both = await _waiting(conn, Lock("a"), Lock("b"))

    assert await holders_of(conn, "a") == [], "it does not keep others out while it waits"
    await end(conn, holder)
    await take(conn, both)
    assert (await holders_of(conn, "a"), await holders_of(conn, "b")) == ([both], [both])


async def test_job_that_waits_for_two_locks_runs_when_both_are_free(conn: Any) -> None:
    first, second = await hold(conn, locks=(Lock("a"),)), await hold(conn, locks=(Lock("b"),))
    both = await _waiting(conn, Lock("a"), Lock("b"))

    await end(conn, first)
    await make_due(conn, both)
    refused = await _try(conn, both)
    await end(conn, second)

    assert refused is None
    assert (await take(conn, both)).attempt_no == 1


# ---------------------------------------------------------------------------------------------------------------------
# Rejecting
# ---------------------------------------------------------------------------------------------------------------------


async def test_busy_lock_with_reject_refuses_the_enqueue(conn: Any) -> None:
    """The caller hears it now, and nothing was written."""
    holder = await add(conn, locks=(REJECT,))
    before = await everything(conn)

    with pytest.raises(LockBusy, match=f"lock 't' is held by job {holder}") as refused:
        await enqueue(conn, NewJob("k", locks=(REJECT,)))

    assert (refused.value.key, refused.value.holder) == ("t", holder)
    assert await everything(conn) == before


async def test_reject_lock_is_held_from_enqueue_to_the_end_of_the_job(conn: Any) -> None:
    """E-47: also while it waits in the queue, over retries, crashes and engines."""
    job_id = await add(conn, locks=(REJECT,), max_crashes=9, max_attempts=9)

    async def busy() -> bool:
        try:
            async with conn.transaction(force_rollback=True):
                await enqueue(conn, NewJob("k", locks=(REJECT,)))
        except LockBusy:
            return True
        return False

    assert await busy(), "pending"
    claimed = await take(conn, job_id)
    assert await busy(), "running"
    await end(conn, claimed, Retry("busy", timedelta(0)))
    assert await busy(), "between attempts"
    claimed = await take(conn, job_id)
    await finish(conn, claimed, released("shutdown"))
    assert await busy(), "given back"
    claimed = await replace(conn, await take(conn, job_id))
    assert await busy(), "rescued"
    await silence(conn, claimed)
    await recover(conn, claimed.id, actor="ada")
    assert await busy(), "recovered"
    claimed = await take(conn, job_id)
    await submit(conn, claimed)
    assert await busy(), "submitted"
    claimed = await poll(conn, job_id)
    assert await busy(), "being polled"
    await end(conn, claimed, Done())
    assert not await busy(), "ended"


@pytest.mark.parametrize("force", [False, True])
async def test_cancel_releases_locks_held_since_enqueue(conn: Any, force: bool) -> None:
    job_id = await add(conn, locks=(REJECT,))
    if force:
        await take(conn, job_id)

    await cancel(conn, job_id, actor="ada", force=force)

    assert (await enqueue(conn, NewJob("k", locks=(REJECT,)))).created


async def test_reject_and_wait_use_the_same_lock(conn: Any) -> None:
    waiter_first = await hold(conn, locks=(EXCLUSIVE,))
    with pytest.raises(LockBusy):
        await enqueue(conn, NewJob("k", locks=(REJECT,)))
    await end(conn, waiter_first)

    held_to_the_end = await add(conn, locks=(REJECT,))
    waiting = await _waiting(conn, EXCLUSIVE)
    await end(conn, await take(conn, held_to_the_end))

    assert await state_of(conn, waiting) == "pending"


async def test_permits_and_shared_locks_can_reject_too(conn: Any) -> None:
    two = Lock("t", most=2, when_busy="reject")
    first, second = await add(conn, locks=(two,)), await add(conn, locks=(two,))

    with pytest.raises(LockBusy):
        await enqueue(conn, NewJob("k", locks=(two,)))
    with pytest.raises(LockBusy):
        await enqueue(conn, NewJob("k", locks=(Lock("t", most=None, when_busy="reject"),)))

    await cancel(conn, first, actor="ada")
    third = await add(conn, locks=(two,))
    assert sorted(await holders_of(conn, "t")) == [second, third]
    assert await rows(conn, "SELECT permit FROM holdfast.lock_holders ORDER BY 1") == [(1,), (2,)]


async def test_shared_locks_with_reject_are_never_refused_by_each_other(conn: Any) -> None:
    shared = Lock("t", most=None, when_busy="reject")
    jobs = [await add(conn, locks=(shared,)) for _ in range(4)]

    assert await holders_of(conn, "t") == jobs


async def test_concurrent_enqueues_with_reject_give_one_job_and_one_refusal(connect: Any) -> None:
    """P5: the second waits for the first to commit, and then sees its lock."""
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction():
        made = await add(first, locks=(REJECT,))
        enqueueing = asyncio.create_task(enqueue(second, NewJob("k", locks=(REJECT,))))
        await waits(conn, second)

    with pytest.raises(LockBusy, match=f"job {made}"):
        await enqueueing
    assert await holders_of(conn, "t") == [made]


async def test_rolled_back_enqueue_with_reject_leaves_the_lock_free(connect: Any) -> None:
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction(force_rollback=True):
        await add(first, locks=(REJECT,))
        enqueueing = asyncio.create_task(enqueue(second, NewJob("k", locks=(REJECT,))))
        await waits(conn, second)

    made = await enqueueing
    assert await holders_of(conn, "t") == [made.id]


async def test_rerun_of_a_job_with_reject_waits(conn: Any) -> None:
    from holdfast.jobs.rerun import rerun

    claimed = await hold(conn, locks=(REJECT,))
    await end(conn, claimed, Fail("no"))
    other = await add(conn, locks=(REJECT,))

    await rerun(conn, claimed.id, actor="ada")

    assert await _try(conn, claimed.id) is None
    await cancel(conn, other, actor="ada")
    assert (await take(conn, claimed.id)).attempt_no == 2


# ---------------------------------------------------------------------------------------------------------------------
# Nobody holds one thing and waits for another
# ---------------------------------------------------------------------------------------------------------------------

A_THEN_B = (Lock("a", when_busy="reject"), Lock("b"))
B_THEN_A = (Lock("b", when_busy="reject"), Lock("a"))


async def test_one_reject_lock_takes_all_locks_of_the_job_at_enqueue(conn: Any) -> None:
    """Two such jobs in opposite orders held what the other waited for, for ever."""
    first = await add(conn, locks=A_THEN_B)

    with pytest.raises(LockBusy, match=f"lock 'a' is held by job {first}"):
        await enqueue(conn, NewJob("k", locks=B_THEN_A))

    assert (await holders_of(conn, "a"), await holders_of(conn, "b")) == ([first], [first])
    claimed = await take(conn, first)
    await end(conn, claimed, Retry("busy", timedelta(0)))
    assert (await holders_of(conn, "a"), await holders_of(conn, "b")) == ([first], [first]), "also between attempts"
    await end(conn, await take(conn, first))
    assert (await enqueue(conn, NewJob("k", locks=B_THEN_A))).created


async def test_busy_wait_lock_refuses_a_job_that_also_has_a_reject_lock(conn: Any) -> None:
    holder = await hold(conn, locks=(Lock("b"),))
    before = await everything(conn)

    with pytest.raises(LockBusy, match=f"lock 'b' is held by job {holder.id}; .* when_busy='wait' for all locks"):
        await enqueue(conn, NewJob("k", locks=A_THEN_B))

    assert await everything(conn) == before


@pytest.mark.parametrize("commits", [True, False])
async def test_enqueues_with_locks_in_opposite_order_do_not_deadlock(connect: Any, commits: bool) -> None:
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction(force_rollback=not commits):
        made = await add(first, locks=A_THEN_B)
        enqueueing = asyncio.create_task(enqueue(second, NewJob("k", locks=B_THEN_A)))
        await waits(conn, second)

    if commits:
        with pytest.raises(LockBusy, match=f"job {made}"):
            await enqueueing
        await end(conn, await take(conn, made))
    else:
        await end(conn, await take(conn, (await enqueueing).id))
    assert await rows(conn, "SELECT state FROM holdfast.jobs") == [("completed",)]


async def test_job_that_holds_locks_since_enqueue_is_never_blocked(conn: Any) -> None:
    """Whatever holds or waits for its keys by then."""
    job_id = await add(conn, locks=A_THEN_B)
    for key in "ab":
        await _waiting(conn, Lock(key), priority=-1)

    assert (await take(conn, job_id)).attempt_no == 1


async def test_rerun_waits_for_its_locks_and_holds_none(conn: Any) -> None:
    from holdfast.jobs.rerun import rerun

    claimed = await hold(conn, locks=A_THEN_B)
    await end(conn, claimed, Fail("no"))
    await hold(conn, locks=(Lock("b"),))

    await rerun(conn, claimed.id, actor="ada")

    assert await _try(conn, claimed.id) is None
    assert (await state_of(conn, claimed.id), await holders_of(conn, "a")) == ("blocked", [])
    assert await column(conn, claimed.id, "ties") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Holding without running
# ---------------------------------------------------------------------------------------------------------------------


async def test_submitted_job_keeps_its_locks(conn: Any) -> None:
    """E-50: the table is still being written."""
    claimed = await hold(conn, locks=(EXCLUSIVE,))
    await submit(conn, claimed)
    waiting = await _waiting(conn, EXCLUSIVE)

    looked = await poll(conn, claimed.id)
    attempt = await value(conn, "SELECT attempt_id::text FROM holdfast.lock_holders")
    await end(conn, looked, Submitted("query-1"))
    still = await state_of(conn, waiting)
    await end(conn, await poll(conn, claimed.id), Done())

    assert attempt == looked.attempt_id, "the look holds it now"
    assert (still, await state_of(conn, waiting)) == ("blocked", "pending")


async def test_resubmit_after_lost_work_releases_the_locks(conn: Any) -> None:
    claimed = await hold(conn, locks=(EXCLUSIVE,))
    await submit(conn, claimed)

    await end(conn, await poll(conn, claimed.id), Retry("unknown query"))

    assert await holders_of(conn, "t") == []


# ---------------------------------------------------------------------------------------------------------------------
# By attempt and never by job
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_lock_belongs_to_the_attempt_that_took_it(conn: Any) -> None:
    """K-27."""
    first = await hold(conn, locks=(EXCLUSIVE,), max_crashes=9)
    second = await replace(conn, first)

    assert await rows(conn, "SELECT job_id, attempt_id::text FROM holdfast.lock_holders") == [(first.id, second.attempt_id)]


async def test_replaced_attempt_releases_no_lock(conn: Any) -> None:
    """E-49: the guard is in the statement, not only in the order of the steps before it."""
    from holdfast.jobs import locks

    first = await hold(conn, locks=(EXCLUSIVE,), max_crashes=9)
    await replace(conn, first)
    before = await everything(conn)

    async with conn.transaction(), conn.cursor() as cursor:
        await locks.give_back(cursor, first.id, first.attempt_id, ended=True, keep=False)

    assert await everything(conn) == before


# ---------------------------------------------------------------------------------------------------------------------
# Who leaves, wakes; and the sweep behind it
# ---------------------------------------------------------------------------------------------------------------------


async def test_every_end_of_an_attempt_wakes_the_next_job(conn: Any) -> None:
    for leave in (
        lambda claimed: cancel(conn, claimed.id, actor="ada", force=True),
        lambda claimed: lose(conn, claimed),
        lambda claimed: finish(conn, claimed, released("shutdown")),
    ):
        holder = await hold(conn, locks=(EXCLUSIVE,))
        waiting = await _waiting(conn, EXCLUSIVE)

        await leave(holder)

        assert await state_of(conn, waiting) == "pending"
        await cancel(conn, waiting, actor="ada")
        if await state_of(conn, holder.id) == "pending":
            await cancel(conn, holder.id, actor="ada")


async def test_sweep_wakes_a_job_that_was_not_woken(conn: Any) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await _waiting(conn, EXCLUSIVE)
    await conn.execute("DELETE FROM holdfast.lock_holders")

    await wake_forgotten(conn)

    assert await state_of(conn, waiting) == "pending"
    assert await state_of(conn, holder.id) == "running"


async def test_wake_does_not_change_a_running_job(conn: Any) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    running = await hold(conn, locks=(Lock("other"),))
    await conn.execute("UPDATE holdfast.lock_wants SET waiting = true, key = 't' WHERE job_id = %s", [running.id])

    await end(conn, holder)

    assert (await job(conn, running.id)).attempt_id == running.attempt_id


async def test_sweep_does_not_wake_jobs_whose_lock_is_busy(conn: Any) -> None:
    await hold(conn, locks=(EXCLUSIVE,))
    await _waiting(conn, EXCLUSIVE)
    await hold(conn, locks=(Lock("p", most=2),)), await hold(conn, locks=(Lock("p", most=2),))
    await _waiting(conn, Lock("p", most=2))
    before = await everything(conn)

    await wake_forgotten(conn)

    assert await everything(conn) == before


async def test_wake_skips_a_locked_waiter_and_the_sweep_wakes_it(connect: Any) -> None:
    """The holder that leaves never waits for anybody."""
    conn, other = await connect(), await connect()
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await _waiting(conn, EXCLUSIVE)
    await never_wait(conn)

    async with other.transaction():
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [waiting])
        await end(conn, holder)
    forgotten = await state_of(conn, waiting)
    await wake_forgotten(conn)

    assert (forgotten, await state_of(conn, waiting)) == ("blocked", "pending")


async def test_paused_waiter_does_not_block_others(conn: Any) -> None:
    holder = await hold(conn, locks=(EXCLUSIVE,))
    paused, other = await _waiting(conn, EXCLUSIVE, kind="paused"), await _waiting(conn, EXCLUSIVE)
    await pause(conn, "paused", actor="ada")

    await end(conn, holder)

    assert (await state_of(conn, paused), await state_of(conn, other)) == ("blocked", "pending")
    await end(conn, await take(conn, other))
    await resume(conn, "paused")
    await wake_forgotten(conn)
    assert await state_of(conn, paused) == "pending"


async def test_job_cancelled_between_the_two_steps_of_its_claim_is_not_blocked(conn: Any) -> None:
    """It would stand at the head of the line for ever, and nobody behind it would be woken."""
    from holdfast.jobs.claim import claim_tied

    holder = await hold(conn, locks=(EXCLUSIVE,))
    named = await add(conn, locks=(EXCLUSIVE,))
    await cancel(conn, named, actor="ada")
    before = await everything(conn)

    assert await claim_tied(conn, holder.worker_id, [named]) == []

    assert await everything(conn) == before


async def test_finishing_holder_sees_a_job_that_decided_to_wait_before(connect: Any) -> None:
    """The key's row is held by both, so neither can miss the other."""
    conn, leaving, coming = await connect(), await connect(), await connect()
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await add(conn, locks=(EXCLUSIVE,))
    worker = await start_worker(conn)

    async with leaving.transaction():
        await finish(leaving, holder, COMPLETED)
        claiming = asyncio.create_task(claim_by_id(coming, worker, waiting))
        await waits(conn, coming)

    claimed = await claiming
    assert claimed is not None, "it saw the lock come free"
    assert await holders_of(conn, "t") == [waiting]


async def test_job_that_decides_to_wait_is_woken_by_the_finishing_holder(connect: Any) -> None:
    conn, leaving, coming = await connect(), await connect(), await connect()
    holder = await hold(conn, locks=(EXCLUSIVE,))
    waiting = await add(conn, locks=(EXCLUSIVE,))
    worker = await start_worker(conn)

    async with coming.transaction():
        assert await claim_by_id(coming, worker, waiting) is None
        finishing = asyncio.create_task(finish(leaving, holder, COMPLETED))
        await waits(conn, leaving)
    await finishing

    assert await state_of(conn, waiting) == "pending"


async def test_rescue_keeps_locks_held_since_enqueue(conn: Any) -> None:
    waits, rejects = await hold(conn, locks=(Lock("w"),)), await hold(conn, locks=(Lock("r", when_busy="reject"),))
    await silence(conn, waits)
    await silence(conn, rejects)

    await rescue(conn)

    assert (await holders_of(conn, "w"), await holders_of(conn, "r")) == ([], [rejects.id])
    assert (await column(conn, waits.id, "ties"), await column(conn, rejects.id, "ties")) == (1, 33)
