"""Taking jobs from holders that went silent: only from those, once, with a cause, and never for ever."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from factories import (
    EXPIRED,
    HOUR,
    LEASE,
    add,
    clock,
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
from holdfast.jobs import effects
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim as claim_jobs
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import Claim, Lock
from holdfast.jobs.outcome import COMPLETED, Done, Retry
from holdfast.jobs.renew import renew
from holdfast.jobs.rescue import OVERDUE_GRACE, rescue, rescue_worker
from holdfast.jobs.views.explain import explain


async def test_the_jobs_of_a_silent_worker_can_run_again_at_once(conn: Any) -> None:
    """K-24, K-48, E-33: claimed jobs too, and without an operator."""
    worker = await start_worker(conn)
    claims = [await hold(conn, worker=worker) for _ in range(3)]
    await silence(conn, claims[0])

    assert sorted(await rescue(conn)) == [claim.id for claim in claims]

    found = await job(conn, claims[0].id)
    assert (found.state, found.attempt_id, found.worker_id, found.run_after) == ("pending", None, None, None)
    assert (found.crashes, found.errors, found.cause, found.error) == (1, 0, "lease_lost", "its worker went silent")


async def test_a_worker_that_beats_keeps_its_jobs_however_long_they_take(conn: Any) -> None:
    """K-22, E-01, E-35: the lease decides, and never the age of the claim."""
    claim = await hold(conn)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '10 days' WHERE id = %s", [claim.id])
    before = await everything(conn)

    assert await rescue(conn) == []

    assert await everything(conn) == before


async def test_a_lease_ends_by_the_clock_and_not_by_the_start_of_the_rescuers_transaction(connect: Any) -> None:
    """P7."""
    conn, other = await connect(), await connect()
    claim = await hold(conn)

    async with conn.transaction():
        await conn.execute("SELECT now()")
        await other.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp()")
        assert await rescue(conn) == [claim.id]


async def test_only_the_silent_are_relieved(conn: Any) -> None:
    silent, healthy = await hold(conn), await hold(conn)
    await silence(conn, silent)

    assert await rescue(conn) == [silent.id]

    assert (await job(conn, healthy.id)).attempt_id == healthy.attempt_id


async def test_a_second_rescue_finds_nothing(conn: Any) -> None:
    await lose(conn, await hold(conn))
    before = await everything(conn)

    assert await rescue(conn) == []

    assert await everything(conn) == before


async def test_a_rescue_takes_no_more_workers_than_it_was_told_to_and_each_of_them_whole(conn: Any) -> None:
    """What died together is judged together."""
    for _ in range(3):
        worker = await start_worker(conn)
        claims = [await hold(conn, worker=worker) for _ in range(5)]
        await silence(conn, claims[0])

    assert [len(await rescue(conn, limit=2)) for _ in range(3)] == [10, 5, 0]


async def test_a_rescue_stands_in_the_history_with_the_attempt_that_ended(conn: Any) -> None:
    claim = await hold(conn)
    await silence(conn, claim)

    await rescue(conn, actor="worker-7")

    ((move, state, attempt_id, worker_id, attempt_no, actor, reason, detail),) = await rows(
        conn,
        """SELECT move, state, attempt_id::text, worker_id::text, attempt_no, actor, reason, detail
           FROM holdfast.history WHERE job_id = %s""",
        claim.id,
    )
    assert (move, state, attempt_id, worker_id, attempt_no) == ("rescue", "pending", claim.attempt_id, claim.worker_id, 1)
    assert (actor, reason, detail) == ("worker-7", "its worker went silent", {"cause": "lease_lost"})


# ---------------------------------------------------------------------------------------------------------------------
# Races, stepped
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_job_that_is_just_being_finished_is_left_finished(connect: Any) -> None:
    """P27, E-48: the rescue waits for the row and then asks for the attempt once more."""
    conn, finisher, rescuer = await connect(), await connect(), await connect()
    claim = await hold(conn)
    await silence(conn, claim)

    async with finisher.transaction():
        await finish(finisher, claim, COMPLETED)
        rescuing = asyncio.create_task(rescue(rescuer))
        await waits(conn, rescuer)

    assert await rescuing == []
    assert await state_of(conn, claim.id) == "completed"
    assert await moves_of(conn, claim.id) == ["complete"]


async def test_a_job_that_was_just_given_to_another_attempt_is_left_to_it(connect: Any) -> None:
    conn, other, rescuer = await connect(), await connect(), await connect()
    worker = await start_worker(conn)
    claim = await hold(conn)
    await silence(conn, claim)

    async with other.transaction():
        await end(other, claim, Retry("busy", timedelta(0)))
        successor = await take(other, claim.id, worker)
        rescuing = asyncio.create_task(rescue(rescuer))
        await waits(conn, rescuer)

    assert await rescuing == []
    assert (await job(conn, claim.id)).attempt_id == successor.attempt_id


async def test_a_worker_that_is_just_renewing_keeps_its_jobs(connect: Any) -> None:
    conn, renewing = await connect(), await connect()
    claim = await hold(conn)
    await silence(conn, claim)
    await never_wait(conn)

    async with renewing.transaction():
        await renew(renewing, claim.worker_id, [claim], lease=LEASE)
        during = await rescue(conn)
    after = await rescue(conn)

    assert (during, after) == ([], [])


async def test_a_finish_that_comes_second_is_refused(connect: Any) -> None:
    conn, rescuer, finisher = await connect(), await connect(), await connect()
    claim = await hold(conn)
    await silence(conn, claim)

    async with rescuer.transaction():
        assert await rescue(rescuer) == [claim.id]
        finishing = asyncio.create_task(complete_plain(finisher, [claim], [None]))
        await waits(conn, finisher)

    assert await finishing == set()
    assert await moves_of(conn, claim.id) == ["rescue"]


async def test_two_rescuers_rescue_each_job_once(connect: Any) -> None:
    conn = await connect()
    worker = await start_worker(conn)
    claims = [await hold(conn, worker=worker) for _ in range(10)]
    await silence(conn, claims[0])

    rescuers = [await connect() for _ in range(4)]

    found = await asyncio.gather(*(rescue(rescuer) for rescuer in rescuers))

    assert sorted(job_id for some in found for job_id in some) == [claim.id for claim in claims]
    assert await rows(conn, "SELECT DISTINCT crashes FROM holdfast.jobs") == [(1,)]


# ---------------------------------------------------------------------------------------------------------------------
# Budgets
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_job_that_takes_its_process_down_again_and_again_is_quarantined(conn: Any) -> None:
    """E-52: a poison job does not loop for ever."""
    claim = await hold(conn, max_crashes=3)
    claim = await replace(conn, claim)
    claim = await replace(conn, claim)
    await silence(conn, claim)

    await rescue(conn)

    found = await job(conn, claim.id)
    assert (found.state, found.crashes, found.errors, found.cause) == ("failed", 3, 0, "lease_lost")
    assert found.is_quarantined
    assert found.finished_at is not None
    assert await moves_of(conn, claim.id) == ["rescue", "rescue", "quarantine"]


async def test_crashes_and_errors_are_counted_apart(conn: Any) -> None:
    claim = await hold(conn, max_attempts=2, max_crashes=2)
    claim = await replace(conn, claim)

    await end(conn, claim, ValueError("odd"))

    found = await job(conn, claim.id)
    assert (found.state, found.crashes, found.errors) == ("pending", 1, 1), "one of each leaves a try of each"


async def test_the_first_crash_costs_no_time_and_each_further_one_more(conn: Any) -> None:
    claim = await hold(conn, max_crashes=20)
    for delay in (0, 2, 4, 8, 16, 32, 60, 60):
        await silence(conn, claim)
        before = await clock(conn)
        await rescue(conn)
        after = await clock(conn)
        due = (await job(conn, claim.id)).run_after

        if delay == 0:
            assert due is None
        else:
            assert before <= due - timedelta(seconds=delay) <= after
        await make_due(conn, claim.id)
        claim = await take(conn, claim.id)


async def test_a_crash_of_a_job_that_was_asked_to_stop_ends_it(conn: Any) -> None:
    """E-44: it has stopped, though not as it was meant to."""
    claim = await hold(conn, max_crashes=1)
    await cancel(conn, claim.id, actor="ada", reason="wrong year")

    await lose(conn, claim)

    found = await job(conn, claim.id)
    assert (found.state, found.is_quarantined) == ("cancelled", False)
    assert await moves_of(conn, claim.id) == ["act", "cancel"]


# ---------------------------------------------------------------------------------------------------------------------
# Whose fault was it?
# ---------------------------------------------------------------------------------------------------------------------


async def _die_together(conn: Any, *ids: int) -> list[Claim]:
    """One process runs these jobs and dies."""
    worker = await start_worker(conn)
    for job_id in ids:
        await make_due(conn, job_id)
    claims = [await take(conn, job_id, worker) for job_id in ids]
    await silence(conn, claims[0])
    assert sorted(await rescue(conn)) == sorted(ids)
    return claims


@pytest.mark.parametrize("max_crashes", [1, 2, 3])
async def test_f_17_a_job_that_died_among_others_is_never_quarantined_for_it(conn: Any, max_crashes: int) -> None:
    """F-17: nobody knows whose fault it was."""
    together = [await add(conn, max_crashes=max_crashes) for _ in range(3)]
    for _ in range(5):
        await _die_together(conn, *together)

    found = [await job(conn, job_id) for job_id in together]

    assert {(one.state, one.crashes) for one in found} == {("pending", max_crashes - 1)}
    assert {await column(conn, one.id, "alone") for one in found} == {True}


async def test_f_17_the_last_crash_is_spent_by_a_job_that_was_alone(conn: Any) -> None:
    poison, innocent = await add(conn, max_crashes=1), await add(conn, max_crashes=1)
    await _die_together(conn, poison, innocent)

    await _die_together(conn, poison)

    assert (await job(conn, poison)).is_quarantined
    assert await state_of(conn, innocent) == "pending"


async def test_a_claim_says_that_the_job_must_run_alone(conn: Any) -> None:
    first, second = await add(conn), await add(conn, locks=(Lock("t"),))
    (claim, _) = await _die_together(conn, first, second)
    assert claim.alone is False

    worker = await start_worker(conn)
    claims = await claim_jobs(conn, worker, kinds=["k"])

    assert {one.id: one.alone for one in claims} == {first: True, second: True}


async def test_the_history_and_the_explanation_tell_why_it_runs_alone(conn: Any) -> None:
    first, *_ = together = [await add(conn) for _ in range(4)]
    await _die_together(conn, *together)

    ((reason, detail),) = await rows(conn, "SELECT reason, detail FROM holdfast.history WHERE job_id = %s", first)
    assert reason == "its worker went silent; 3 others ran or waited in the same process, so it runs alone from now on"
    assert detail == {"cause": "lease_lost", "beside": 3}
    await take(conn, first)
    assert "worker, alone in a process because an earlier one died with 3 others, for" in await explain(conn, first)


async def test_a_crash_that_is_not_counted_says_so_in_the_history(conn: Any) -> None:
    first, second = await add(conn, max_crashes=1), await add(conn, max_crashes=1)
    await _die_together(conn, first, second)

    assert await rows(conn, "SELECT detail FROM holdfast.history ORDER BY job_id LIMIT 1") == [
        ({"cause": "lease_lost", "beside": 1, "counted": False},)
    ]


async def test_a_job_that_had_not_begun_when_its_process_died_is_not_judged_at_all(conn: Any) -> None:
    """Claimed ahead: the parent of the process knows what was really at work."""
    worker = await start_worker(conn)
    guilty, ahead = await hold(conn, worker=worker, max_crashes=1), await hold(conn, worker=worker, max_crashes=1)

    await rescue_worker(conn, worker, cause="signal", error="killed by signal 11", begun=[guilty.id])

    assert (await job(conn, guilty.id)).is_quarantined, "it was the only one at work"
    found = await job(conn, ahead.id)
    assert (found.state, found.crashes, found.run_after) == ("pending", 0, None)
    assert await column(conn, ahead.id, "alone") is False
    ((reason, detail),) = await rows(conn, "SELECT reason, detail FROM holdfast.history WHERE job_id = %s", ahead.id)
    assert (reason, detail) == ("killed by signal 11; it had not begun", {"cause": "signal", "counted": False})


async def test_one_that_has_a_process_of_its_own_and_never_dies_alone_waits_longer_each_time(conn: Any) -> None:
    """A child that takes its whole pod along cannot be blamed beside others; it must not do so every second."""
    first, second = await add(conn), await add(conn)
    delays = []
    for _ in range(11):
        before = await clock(conn)
        await _die_together(conn, first, second)
        due = (await job(conn, first)).run_after
        delays.append(0 if due is None else round((due - before).total_seconds()))

    assert delays == [0, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


async def test_a_rescue_by_attempt_leaves_the_next_attempt_alone(conn: Any) -> None:
    """Its process died after it had written its end: by now the same worker has the job again."""
    worker = await start_worker(conn)
    first = await hold(conn, worker=worker)
    await end(conn, first, Retry("busy", timedelta(0)))
    second = await take(conn, first.id, worker)

    assert await rescue_worker(conn, worker, cause="signal", error="killed", attempts=[first.attempt_id]) == []

    assert (await job(conn, first.id)).attempt_id == second.attempt_id


# ---------------------------------------------------------------------------------------------------------------------
# Beyond the longest time
# ---------------------------------------------------------------------------------------------------------------------


async def _overdue_by(conn: Any, claim: Claim, by: timedelta) -> None:
    await conn.execute("UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - %s WHERE id = %s", [by, claim.id])


async def test_an_attempt_far_beyond_its_longest_time_is_taken_from_a_worker_that_lives(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await _overdue_by(conn, claim, OVERDUE_GRACE + timedelta(minutes=1))

    assert await rescue(conn) == [claim.id]

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.error) == ("pending", "max_runtime", "it ran beyond its longest time")


async def test_within_the_grace_the_worker_may_stop_it_by_itself(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await _overdue_by(conn, claim, OVERDUE_GRACE - timedelta(seconds=20))

    assert await rescue(conn) == []


async def test_the_deadline_of_an_attempt_dies_with_it(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await _overdue_by(conn, claim, HOUR)
    await end(conn, claim, Done())

    assert await rescue(conn) == []


# ---------------------------------------------------------------------------------------------------------------------
# By somebody who knows
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_keeper_that_saw_its_child_die_waits_for_no_lease(conn: Any) -> None:
    """The cause is on record: out of memory, not just silence."""
    worker = await start_worker(conn, lease=HOUR)
    claim, other = await hold(conn, worker=worker), await hold(conn)

    assert await rescue_worker(conn, worker, cause="oom", error="killed by signal 9", actor="keeper-1") == [claim.id]

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.error, found.crashes) == ("pending", "oom", "killed by signal 9", 1)
    assert await state_of(conn, other.id) == "running"


async def test_a_keeper_may_name_the_jobs_of_the_child_that_died(conn: Any) -> None:
    worker = await start_worker(conn)
    dead, alive = await hold(conn, worker=worker), await hold(conn, worker=worker)

    assert await rescue_worker(conn, worker, cause="signal", error="segfault", jobs=[dead.id]) == [dead.id]

    assert (await job(conn, alive.id)).attempt_id == alive.attempt_id


# ---------------------------------------------------------------------------------------------------------------------
# What hangs on the attempt goes with it
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_rescue_gives_back_the_locks_of_the_attempt_and_wakes_who_waits(conn: Any) -> None:
    from holdfast.jobs.claim import claim_by_id

    claim = await hold(conn, locks=(Lock("t"),))
    waiting = await add(conn, locks=(Lock("t"),))
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None

    await lose(conn, claim)

    assert await holders_of(conn, "t") == []
    assert await state_of(conn, waiting) == "pending"


async def test_a_rescued_look_keeps_the_locks_because_the_engine_still_works(conn: Any) -> None:
    claim = await hold(conn, locks=(Lock("t"),))
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    await lose(conn, looked)

    assert await holders_of(conn, "t") == [claim.id]


async def test_a_rescued_job_of_a_slot_stays_its_current_one(conn: Any) -> None:
    from holdfast.jobs.claim import claim_by_id

    claim = await hold(conn, slot_key="s")
    follow_up = await add(conn, slot_key="s")
    await lose(conn, claim)

    assert (await job(conn, claim.id)).is_current
    assert await claim_by_id(conn, await start_worker(conn), follow_up) is None, "it may not overtake"
    assert (await take(conn, claim.id)).attempt_no == 2


async def test_a_quarantined_job_frees_its_slot_its_locks_and_spoils_its_dependants(conn: Any) -> None:
    from holdfast.jobs.claim import claim_by_id

    claim = await hold(conn, slot_key="s", locks=(Lock("r"),), max_crashes=1)
    follow_up, child = await add(conn, slot_key="s"), await add(conn, after=(claim.id,))
    assert await claim_by_id(conn, await start_worker(conn), follow_up) is None

    await lose(conn, claim)

    assert await state_of(conn, follow_up) == "pending"
    assert await holders_of(conn, "r") == []
    assert await state_of(conn, child) == "cancelled"


async def test_what_a_lost_attempt_made_outside_is_cleaned_unless_it_may_be_adopted(conn: Any) -> None:
    claim = await hold(conn)
    pod = await effects.plan(conn, claim, "pod")
    query = await effects.plan(conn, claim, "query", adoptable=True)

    await lose(conn, claim)

    assert dict(await rows(conn, "SELECT id, state FROM holdfast.effects")) == {pod.id: "unwanted", query.id: "planned"}


@pytest.mark.parametrize("lease", [EXPIRED, timedelta(0)])
async def test_a_lease_that_was_over_before_it_began_protects_nothing(conn: Any, lease: timedelta) -> None:
    claim = await hold(conn, worker=await start_worker(conn, lease=lease))

    assert await rescue(conn) == [claim.id]
    assert await value(conn, "SELECT count(*) FROM holdfast.history") == 1


@pytest.mark.parametrize(("reason", "shown"), [("the wrong year", "the wrong year"), (None, "asked to stop")])
async def test_a_job_that_was_asked_to_stop_and_then_lost_its_worker_shows_why_it_was_asked(
    conn: Any, reason: str | None, shown: str
) -> None:
    claim = await hold(conn)
    await cancel(conn, claim.id, actor="ada", reason=reason)

    await lose(conn, claim)

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.error) == ("cancelled", "cancelled", shown)
