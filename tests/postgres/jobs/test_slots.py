"""Slots: at most one current job, a running one is never demoted, and no trigger is ever lost.

K-28 to K-32, with E-30, E-31 and E-40 mended.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from factories import (
    HOUR,
    add,
    clock,
    column,
    end,
    everything,
    hold,
    job,
    make_due,
    never_wait,
    poll,
    replace,
    rows,
    start_worker,
    state_of,
    submit,
    take,
    value,
    waits,
)
from holdfast.errors import Refused
from holdfast.jobs import slots
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import COMPLETED, Done, Fail, Retry, Snooze, Submitted
from holdfast.jobs.promote import wake_forgotten
from holdfast.jobs.rerun import rerun


async def _trigger(conn: Any, **fields: Any) -> Any:
    return await enqueue(conn, NewJob("k", slot_key="s", **fields))


async def _try(conn: Any, job_id: int) -> Any:
    return await claim_by_id(conn, await start_worker(conn), job_id)  # type: ignore[arg-type]


async def _current(conn: Any) -> list[int]:
    return [i for (i,) in await rows(conn, "SELECT id FROM holdfast.jobs WHERE slot_key = 's' AND is_current")]


# ---------------------------------------------------------------------------------------------------------------------
# Current
# ---------------------------------------------------------------------------------------------------------------------


async def test_only_a_claim_makes_a_job_current(conn: Any) -> None:
    """K-32."""
    made = await _trigger(conn)
    before = (await job(conn, made.id)).is_current

    await take(conn, made.id)

    assert (before, (await job(conn, made.id)).is_current) == (False, True)


def test_new_job_cannot_be_made_current() -> None:
    """K-32."""
    with pytest.raises(TypeError, match="is_current"):
        NewJob("k", slot_key="s", is_current=True)  # type: ignore[call-arg]


async def test_ended_job_stays_current_so_that_its_result_is_found(conn: Any) -> None:
    """K-28."""
    claimed = await hold(conn, slot_key="s")
    await end(conn, claimed, Done("the result of the slot"))

    assert await _current(conn) == [claimed.id]


async def test_the_next_claim_unsets_the_previous_one_in_the_same_transaction(conn: Any) -> None:
    """K-29."""
    first = await hold(conn, slot_key="s")
    await end(conn, first)

    second = await hold(conn, slot_key="s")

    assert await _current(conn) == [second.id]
    same = "SELECT count(DISTINCT xmin::text) FROM holdfast.jobs WHERE id IN (%s, %s)"
    assert await value(conn, same, first.id, second.id) == 1


async def test_a_job_without_a_slot_is_never_current(conn: Any) -> None:
    assert not (await job(conn, (await hold(conn)).id)).is_current
    assert not (await job(conn, (await hold(conn, locks=(Lock("t"),))).id)).is_current


async def test_slots_are_independent(conn: Any) -> None:
    """E-31: the key is one computed text, so no part of it can be a null that compares with nothing."""
    await hold(conn, slot_key="recalc|module=3|year=-")
    other = await hold(conn, slot_key="recalc|module=-|year=3")

    assert (await job(conn, other.id)).is_current


async def test_empty_key_part_still_makes_a_slot_exclusive(conn: Any) -> None:
    """K-30: a job for the whole year has no module, and there is still only one of it."""
    whole_year = "recalc|module=-|year=2024"
    first = await hold(conn, slot_key=whole_year)
    second = await add(conn, slot_key=whole_year)

    assert await _try(conn, second) is None
    assert (await job(conn, first.id)).is_current


async def test_the_database_itself_allows_one_current_job_per_slot(conn: Any) -> None:
    """K-28: the second wall, whatever the code does."""
    await hold(conn, slot_key="s")

    with pytest.raises(psycopg.errors.UniqueViolation, match="one_current_per_slot"):
        await conn.execute("INSERT INTO holdfast.jobs (kind, slot_key, is_current) VALUES ('k', 's', true)")


async def _race(connect: Any) -> tuple[Any, int, Any]:
    """Two free rows of one slot, of two kinds: the second claim comes while the first is not committed, and waits for it."""
    conn, first, second = await connect(), await connect(), await connect()
    one, other = await add(conn, "one", slot_key="s"), await add(conn, "other", slot_key="s")
    worker = await start_worker(conn)

    async with first.transaction():
        assert (await claim_by_id(first, worker, one)) is not None
        claiming = asyncio.create_task(claim_by_id(second, worker, other))
        await waits(conn, second)

    assert await _current(conn) == [one]
    return conn, other, await claiming


async def test_concurrent_claims_of_one_slot_start_one_job(connect: Any) -> None:
    conn, other, lost = await _race(connect)

    assert lost is None
    assert (await job(conn, other)).waiting_for == "slot"


async def test_claim_refused_by_the_unique_index_is_a_lost_race(connect: Any, monkeypatch: Any) -> None:
    """K-31: without the slot's own lock both claims see a free slot. The index refuses the second; nothing is left of it."""
    monkeypatch.setattr(slots, "HOLD_SLOTS", "SELECT %(slots)s::text[]")

    conn, other, lost = await _race(connect)

    assert lost is None
    found = await job(conn, other)
    assert (found.state, found.attempt_no, found.is_current) == ("pending", 0, False)
    assert await claim_by_id(conn, await start_worker(conn), other) is None
    assert await state_of(conn, other) == "blocked", "the next claim finds the slot taken"


# ---------------------------------------------------------------------------------------------------------------------
# A refused claim changes nothing
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended_with", [None, Fail("no")])
async def test_claim_of_an_ended_job_does_not_demote_the_current_one(conn: Any, ended_with: object) -> None:
    """E-30: the document's claim committed its first step even when the second matched nothing."""
    old = await hold(conn, slot_key="s")
    await end(conn, old, ended_with)
    current = await hold(conn, slot_key="s")
    before = await everything(conn)

    assert await claim_by_id(conn, current.worker_id, old.id) is None

    assert await everything(conn) == before


async def test_a_running_holder_is_never_demoted(conn: Any) -> None:
    """E-30: two jobs of a slot that arrive one after the other do not both run."""
    running = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)

    assert await _try(conn, follow_up.id) is None

    assert await _current(conn) == [running.id]
    found = await job(conn, follow_up.id)
    assert (found.state, found.waiting_for, found.attempt_no, found.is_current) == ("blocked", "slot", 0, False)


@pytest.mark.parametrize("ended_with", [Retry("busy"), Snooze(HOUR), ValueError("odd")])
async def test_holder_that_waits_for_a_retry_stays_the_holder(conn: Any, ended_with: object) -> None:
    holder = await hold(conn, slot_key="s")
    await end(conn, holder, ended_with)
    follow_up = await _trigger(conn)

    assert follow_up.created
    assert await _try(conn, follow_up.id) is None
    await make_due(conn, holder.id)
    assert (await take(conn, holder.id)).attempt_no == 2


async def test_submitted_holder_stays_the_holder(conn: Any) -> None:
    holder = await hold(conn, slot_key="s")
    await submit(conn, holder)
    follow_up = await _trigger(conn)

    assert await _try(conn, follow_up.id) is None

    await end(conn, await poll(conn, holder.id), Submitted("q"))
    assert await state_of(conn, follow_up.id) == "blocked"
    await end(conn, await poll(conn, holder.id), Done())
    assert await state_of(conn, follow_up.id) == "pending"


async def test_rescued_holder_stays_the_holder(conn: Any) -> None:
    holder = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    assert await _try(conn, follow_up.id) is None

    successor = await replace(conn, holder)
    await end(conn, successor)

    assert await state_of(conn, follow_up.id) == "pending"


async def test_batch_claim_applies_the_same_slot_rules(conn: Any) -> None:
    running = await hold(conn, slot_key="s")
    await _trigger(conn)
    other = await add(conn, slot_key="other")

    claims = await claim(conn, await start_worker(conn), kinds=["k"])

    assert [c.id for c in claims] == [other]
    assert await _current(conn) == [running.id]


# ---------------------------------------------------------------------------------------------------------------------
# No trigger is lost
# ---------------------------------------------------------------------------------------------------------------------


async def test_enqueues_before_the_run_merge_into_one_job(conn: Any) -> None:
    first = await _trigger(conn)

    assert await _trigger(conn) == (first.id, False)


async def test_enqueues_during_a_run_create_exactly_one_follow_up(conn: Any) -> None:
    """E-40."""
    running = await hold(conn, slot_key="s")

    triggers = [await _trigger(conn) for _ in range(5)]

    assert len({trigger.id for trigger in triggers}) == 1
    assert [trigger.created for trigger in triggers] == [True, False, False, False, False]
    assert triggers[0].id != running.id
    await end(conn, running)
    await end(conn, await take(conn, triggers[0].id))
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'completed'") == 2


@pytest.mark.parametrize("ended_with", [None, Fail("no")])
async def test_follow_up_runs_after_every_end_of_the_holder(conn: Any, ended_with: object) -> None:
    running = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    assert await _try(conn, follow_up.id) is None

    await end(conn, running, ended_with)

    assert await state_of(conn, follow_up.id) == "pending"
    assert (await take(conn, follow_up.id)).attempt_no == 1


async def test_follow_up_runs_after_the_holder_was_cancelled(conn: Any) -> None:
    running = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    assert await _try(conn, follow_up.id) is None

    await cancel(conn, running.id, actor="ada", force=True)

    assert await state_of(conn, follow_up.id) == "pending"


async def test_run_sees_data_of_an_enqueue_that_merged_into_it(connect: Any) -> None:
    """E-40, stepped: while the trigger's transaction is open the job cannot start, and so not read without its data."""
    conn, trigger = await connect(), await connect()
    waiting = await _trigger(conn)
    worker = await start_worker(conn)
    await never_wait(conn)

    async with trigger.transaction():
        await trigger.execute("INSERT INTO holdfast.controls (kind, reason) VALUES ('data', 'of the trigger')")
        assert await _trigger(trigger) == (waiting.id, False)
        by_id, in_batch = await claim_by_id(conn, worker, waiting.id), await claim(conn, worker, kinds=["k"])
    started = await claim_by_id(conn, worker, waiting.id)

    assert (by_id, in_batch) == (None, [])
    assert started is not None
    assert await value(conn, "SELECT reason FROM holdfast.controls WHERE kind = 'data'") == "of the trigger"


async def test_enqueue_during_the_claim_creates_a_follow_up(connect: Any) -> None:
    """The other order: it waits for the claim, sees that the job runs, and makes a new one."""
    conn, starter, trigger = await connect(), await connect(), await connect()
    waiting = await _trigger(conn)
    worker = await start_worker(conn)

    async with starter.transaction():
        assert await claim_by_id(starter, worker, waiting.id) is not None
        triggering = asyncio.create_task(_trigger(trigger))
        await waits(conn, trigger)

    made = await triggering
    assert made.created
    assert made.id != waiting.id


async def test_unique_job_sees_data_of_an_enqueue_that_merged_into_it(connect: Any) -> None:
    conn, trigger = await connect(), await connect()
    waiting = await add(conn, unique_key="u")
    worker = await start_worker(conn)
    await never_wait(conn)

    async with trigger.transaction():
        assert await enqueue(trigger, NewJob("k", unique_key="u")) == (waiting, False)
        assert await claim_by_id(conn, worker, waiting) is None

    assert await claim_by_id(conn, worker, waiting) is not None


async def test_concurrent_enqueues_create_one_job(connect: Any) -> None:
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction():
        made = await _trigger(first)
        triggering = asyncio.create_task(_trigger(second))
        await waits(conn, second)

    assert await triggering == (made.id, False)


async def test_finishing_holder_sees_a_job_that_decided_to_wait(connect: Any) -> None:
    conn, ending, coming = await connect(), await connect(), await connect()
    holder = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    worker = await start_worker(conn)

    async with coming.transaction():
        assert await claim_by_id(coming, worker, follow_up.id) is None
        finishing = asyncio.create_task(finish(ending, holder, COMPLETED))
        await waits(conn, ending)
    await finishing

    assert await state_of(conn, follow_up.id) == "pending"


async def test_job_claimed_while_the_holder_finishes_takes_over(connect: Any) -> None:
    conn, ending, coming = await connect(), await connect(), await connect()
    holder = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    worker = await start_worker(conn)

    async with ending.transaction():
        await finish(ending, holder, COMPLETED)
        claiming = asyncio.create_task(claim_by_id(coming, worker, follow_up.id))
        await waits(conn, coming)

    assert await claiming is not None
    assert await _current(conn) == [follow_up.id]


async def test_wake_skips_a_locked_follow_up_and_the_sweep_wakes_it(connect: Any) -> None:
    conn, trigger = await connect(), await connect()
    holder = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    assert await _try(conn, follow_up.id) is None
    await never_wait(conn)

    async with trigger.transaction():
        assert await _trigger(trigger) == (follow_up.id, False)
        await end(conn, holder)
    forgotten = await state_of(conn, follow_up.id)
    await wake_forgotten(conn)

    assert (forgotten, await state_of(conn, follow_up.id)) == ("blocked", "pending")


async def test_sweep_does_not_wake_a_job_whose_slot_is_busy(conn: Any) -> None:
    await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    assert await _try(conn, follow_up.id) is None
    before = await everything(conn)

    await wake_forgotten(conn)

    assert await everything(conn) == before


# ---------------------------------------------------------------------------------------------------------------------
# With other things
# ---------------------------------------------------------------------------------------------------------------------


async def test_job_blocked_by_a_lock_does_not_take_its_slot(conn: Any) -> None:
    ended = await hold(conn, slot_key="s")
    await end(conn, ended)
    holder = await hold(conn, locks=(Lock("t"),))
    both = await add(conn, slot_key="s", locks=(Lock("t"),))

    assert await _try(conn, both) is None

    assert await _current(conn) == [ended.id]
    await end(conn, holder)
    await take(conn, both)
    assert await _current(conn) == [both]


async def test_rerun_of_an_ended_holder_waits_for_its_slot(conn: Any) -> None:
    first = await hold(conn, slot_key="s")
    await end(conn, first, Fail("no"))
    second = await hold(conn, slot_key="s")

    await rerun(conn, first.id, actor="ada")

    assert await _try(conn, first.id) is None, "the current one runs"
    await end(conn, second)
    await take(conn, first.id)
    assert await _current(conn) == [first.id]


async def test_rerun_is_refused_while_a_follow_up_waits(conn: Any) -> None:
    first = await hold(conn, slot_key="s")
    await end(conn, first, Fail("no"))
    second = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    before = await everything(conn)

    with pytest.raises(Refused, match="another job waits under its unique key or slot"):
        await rerun(conn, first.id, actor="ada")

    assert await everything(conn) == before
    await cancel(conn, follow_up.id, actor="ada")
    await end(conn, second)


async def test_delayed_follow_up_accepts_merges(conn: Any) -> None:
    running = await hold(conn, slot_key="s")
    delayed = await _trigger(conn, run_after=HOUR)

    assert await _trigger(conn, run_after=2 * HOUR) == (delayed.id, False)

    await end(conn, running)
    assert await column(conn, delayed.id, "run_after") is not None


# ---------------------------------------------------------------------------------------------------------------------
# The last trigger is followed by a run, whatever it finds waiting
# ---------------------------------------------------------------------------------------------------------------------


async def test_kinds_that_share_a_slot_run_one_after_another_without_merging(conn: Any) -> None:
    """K-28: another kind's run is not the one that this trigger asked for."""
    worker = await start_worker(conn)
    holder = await hold(conn, slot_key="s")
    follow_up = await _trigger(conn)
    other = await enqueue(conn, NewJob("other", slot_key="s"))
    assert (follow_up.created, other.created) == (True, True)
    assert await enqueue(conn, NewJob("other", slot_key="s")) == (other.id, False)
    assert await claim(conn, worker, kinds=["k", "other"]) == []
    await end(conn, holder)

    (first,) = await claim(conn, worker, kinds=["k", "other"])
    assert await claim(conn, worker, kinds=["k", "other"]) == []
    await end(conn, first)
    (second,) = await claim(conn, worker, kinds=["k", "other"])

    assert [first.id, second.id] == [follow_up.id, other.id]
    assert await _current(conn) == [other.id]


async def test_claim_starts_one_of_two_kinds_in_a_free_slot(conn: Any) -> None:
    made = [await _trigger(conn), await enqueue(conn, NewJob("other", slot_key="s"))]

    claims = await claim(conn, await start_worker(conn), kinds=["k", "other"])

    assert [one.id for one in claims] == [made[0].id]
    assert await state_of(conn, made[1].id) == "pending"


async def test_enqueue_does_not_merge_into_a_job_that_waits_for_parents(conn: Any) -> None:
    """The parent fails, and what waits for it is cancelled; the trigger is not lost with it."""
    parent = await hold(conn, "parent")
    waiting = await add(conn, slot_key="s", after=(parent.id,))

    made = await _trigger(conn)
    assert made.created
    assert await _trigger(conn) == (made.id, False)
    await end(conn, parent, Fail("no"))

    assert await state_of(conn, waiting) == "cancelled"
    assert (await take(conn, made.id)).id == made.id


async def test_enqueue_with_parents_does_not_merge_and_runs_after_them(conn: Any) -> None:
    waiting = await _trigger(conn)
    parent = await hold(conn, "parent")
    ours = await enqueue(conn, NewJob("k", slot_key="s", after=(parent.id,)))
    assert ours.created

    running = await take(conn, waiting.id)
    follow_up = await _trigger(conn)
    await end(conn, parent)
    worker = await start_worker(conn)
    assert await claim(conn, worker, kinds=["k"]) == []
    await end(conn, running)
    ran = []
    while claims := await claim(conn, worker, kinds=["k"]):
        ran += [one.id for one in claims]
        assert len(claims) == 1, "one at a time"
        await end(conn, claims[0])

    assert ran == [ours.id, follow_up.id]


async def test_immediate_enqueue_makes_a_delayed_follow_up_due_now(conn: Any) -> None:
    waiting = await _trigger(conn, run_after=HOUR)

    assert await _trigger(conn) == (waiting.id, False)

    assert await column(conn, waiting.id, "run_after") is None
    assert [one.id for one in await claim(conn, await start_worker(conn), kinds=["k"])] == [waiting.id]


@pytest.mark.parametrize(("first", "second"), [(HOUR, HOUR / 2), (HOUR / 2, HOUR)])
async def test_earlier_due_time_wins_on_merge(conn: Any, first: timedelta, second: timedelta) -> None:
    before = await clock(conn)
    waiting = await _trigger(conn, run_after=first)

    assert await _trigger(conn, run_after=second) == (waiting.id, False)

    assert before + HOUR / 2 <= await column(conn, waiting.id, "run_after") <= await clock(conn) + HOUR / 2


async def test_delayed_enqueue_keeps_a_follow_up_that_is_due_now(conn: Any) -> None:
    waiting = await _trigger(conn)

    assert await _trigger(conn, run_after=HOUR) == (waiting.id, False)

    assert await column(conn, waiting.id, "run_after") is None


async def test_workers_are_notified_of_an_earlier_due_time(connect: Any) -> None:
    conn, listening = await connect(), await connect()
    await _trigger(conn, run_after=HOUR)
    await listening.execute("LISTEN holdfast")

    await _trigger(conn)

    async for hint in listening.notifies(timeout=60, stop_after=1):
        assert hint.payload == "default"
        return
    raise AssertionError("no worker was told")
