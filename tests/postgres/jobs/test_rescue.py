"""Rescue: only from workers whose lease has expired, once, with a cause, and within the crash budget."""

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
from holdfast.jobs.release import release_worker
from holdfast.jobs.renew import renew
from holdfast.jobs.rescue import OVERDUE_GRACE, rescue, rescue_worker
from holdfast.jobs.views.explain import explain


async def test_rescued_jobs_can_be_claimed_immediately(conn: Any) -> None:
    """X-01, K-24, K-48, E-33: claimed jobs too, and without an operator."""
    worker = await start_worker(conn)
    claims = [await hold(conn, worker=worker) for _ in range(3)]
    await silence(conn, claims[0])

    assert sorted(await rescue(conn)) == [claim.id for claim in claims]

    found = await job(conn, claims[0].id)
    assert (found.state, found.attempt_id, found.worker_id, found.run_after) == ("pending", None, None, None)
    assert (found.crashes, found.errors, found.cause, found.error) == (1, 0, "lease_lost", "its worker went silent")


async def test_heartbeats_keep_long_jobs(conn: Any) -> None:
    """K-22, E-01, E-35: the lease decides, and never the age of the claim."""
    claim = await hold(conn)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '10 days' WHERE id = %s", [claim.id])
    before = await everything(conn)

    assert await rescue(conn) == []

    assert await everything(conn) == before


async def test_lease_expires_by_the_clock_and_not_by_the_start_of_the_transaction(connect: Any) -> None:
    """P7."""
    conn, other = await connect(), await connect()
    claim = await hold(conn)

    async with conn.transaction():
        await conn.execute("SELECT now()")
        await other.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp()")
        assert await rescue(conn) == [claim.id]


async def test_rescue_takes_only_jobs_of_workers_with_expired_leases(conn: Any) -> None:
    silent, healthy = await hold(conn), await hold(conn)
    await silence(conn, silent)

    assert await rescue(conn) == [silent.id]

    assert (await job(conn, healthy.id)).attempt_id == healthy.attempt_id


async def test_a_second_rescue_finds_nothing(conn: Any) -> None:
    await lose(conn, await hold(conn))
    before = await everything(conn)

    assert await rescue(conn) == []

    assert await everything(conn) == before


async def test_rescue_limit_counts_workers_and_takes_all_jobs_of_each(conn: Any) -> None:
    """What died together is judged together."""
    for _ in range(3):
        worker = await start_worker(conn)
        claims = [await hold(conn, worker=worker) for _ in range(5)]
        await silence(conn, claims[0])

    assert [len(await rescue(conn, limit=2)) for _ in range(3)] == [10, 5, 0]


async def test_rescue_is_in_the_history_with_its_attempt(conn: Any) -> None:
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


async def test_rescue_skips_a_job_that_is_being_finished(connect: Any) -> None:
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


async def test_rescue_skips_a_job_that_a_new_attempt_holds(connect: Any) -> None:
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


async def test_rescue_skips_a_worker_that_renews_its_lease(connect: Any) -> None:
    conn, renewing = await connect(), await connect()
    claim = await hold(conn)
    await silence(conn, claim)
    await never_wait(conn)

    async with renewing.transaction():
        await renew(renewing, claim.worker_id, [claim], lease=LEASE)
        during = await rescue(conn)
    after = await rescue(conn)

    assert (during, after) == ([], [])


async def test_finish_after_the_rescue_is_refused(connect: Any) -> None:
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


async def test_job_that_crashes_repeatedly_is_quarantined(conn: Any) -> None:
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


async def test_crashes_and_errors_are_counted_separately(conn: Any) -> None:
    claim = await hold(conn, max_attempts=2, max_crashes=2)
    claim = await replace(conn, claim)

    await end(conn, claim, ValueError("odd"))

    found = await job(conn, claim.id)
    assert (found.state, found.crashes, found.errors) == ("pending", 1, 1), "one of each leaves a try of each"


async def test_first_crash_has_no_delay_and_later_ones_have_a_backoff(conn: Any) -> None:
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


async def test_crash_ends_a_job_whose_cancellation_was_requested(conn: Any) -> None:
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
async def test_f_17_crash_beside_other_jobs_never_quarantines(conn: Any, max_crashes: int) -> None:
    """F-17: nobody knows whose fault it was."""
    together = [await add(conn, max_crashes=max_crashes) for _ in range(3)]
    for _ in range(5):
        await _die_together(conn, *together)

    found = [await job(conn, job_id) for job_id in together]

    assert {(one.state, one.crashes) for one in found} == {("pending", max_crashes - 1)}
    assert {await column(conn, one.id, "alone") for one in found} == {True}


async def test_f_17_last_crash_counts_only_for_a_job_that_ran_alone(conn: Any) -> None:
    poison, innocent = await add(conn, max_crashes=1), await add(conn, max_crashes=1)
    await _die_together(conn, poison, innocent)

    await _die_together(conn, poison)

    assert (await job(conn, poison)).is_quarantined
    assert await state_of(conn, innocent) == "pending"


async def test_claim_has_the_run_alone_flag(conn: Any) -> None:
    first, second = await add(conn), await add(conn, locks=(Lock("t"),))
    (claim, _) = await _die_together(conn, first, second)
    assert claim.alone is False

    worker = await start_worker(conn)
    claims = await claim_jobs(conn, worker, kinds=["k"])

    assert {one.id: one.alone for one in claims} == {first: True, second: True}


async def test_history_and_explain_give_the_reason_for_running_alone(conn: Any) -> None:
    first, *_ = together = [await add(conn) for _ in range(4)]
    await _die_together(conn, *together)

    ((reason, detail),) = await rows(conn, "SELECT reason, detail FROM holdfast.history WHERE job_id = %s", first)
    assert reason == "its worker went silent; 3 others ran or waited in the same process, so it runs alone from now on"
    assert detail == {"cause": "lease_lost", "beside": 3}
    await take(conn, first)
    assert "worker, alone in a process because an earlier one died with 3 others, for" in await explain(conn, first)


async def test_uncounted_crash_is_marked_in_the_history(conn: Any) -> None:
    first, second = await add(conn, max_crashes=1), await add(conn, max_crashes=1)
    await _die_together(conn, first, second)

    assert await rows(conn, "SELECT detail FROM holdfast.history ORDER BY job_id LIMIT 1") == [
        ({"cause": "lease_lost", "beside": 1, "counted": False},)
    ]


async def test_crash_is_not_counted_for_a_job_that_had_not_begun(conn: Any) -> None:
    """Claimed ahead: the parent of the process knows what was really at work."""
    worker = await start_worker(conn)
    guilty, ahead = await hold(conn, worker=worker, max_crashes=1), await hold(conn, worker=worker, max_crashes=1)

    await rescue_worker(conn, worker, cause="signal", error="killed by signal 11", begun=[guilty.fence_token])

    assert (await job(conn, guilty.id)).is_quarantined, "it was the only one at work"
    found = await job(conn, ahead.id)
    assert (found.state, found.crashes, found.run_after) == ("pending", 0, None)
    assert await column(conn, ahead.id, "alone") is False
    ((reason, detail),) = await rows(conn, "SELECT reason, detail FROM holdfast.history WHERE job_id = %s", ahead.id)
    assert (reason, detail) == ("killed by signal 11; it had not begun", {"cause": "signal", "counted": False})


async def test_crash_is_not_counted_for_an_attempt_whose_predecessor_still_ran(conn: Any) -> None:
    """The process had lost the job, still ran it, and held it again when it died."""
    worker = await start_worker(conn)
    lost = await hold(conn, worker=worker, max_crashes=1)
    await release_worker(conn, worker)
    again = await take(conn, lost.id, worker)

    await rescue_worker(conn, worker, cause="signal", error="killed by signal 11", begun=[lost.fence_token])

    found = await job(conn, again.id)
    assert (found.state, found.crashes) == ("pending", 0)


async def test_job_that_never_crashes_alone_waits_longer_each_time(conn: Any) -> None:
    """A child that takes its whole pod along cannot be blamed beside others; it must not do so every second."""
    first, second = await add(conn), await add(conn)
    await _die_together(conn, first, second)
    assert (await job(conn, first)).run_after is None

    for delay in (4, 8, 16, 32, 64, 128, 256, 512, 600, 600):
        before = await clock(conn)
        await _die_together(conn, first, second)
        after = await clock(conn)
        due = (await job(conn, first)).run_after
        assert due is not None
        assert before <= due - timedelta(seconds=delay) <= after


async def test_rescue_by_attempt_does_not_affect_the_next_attempt(conn: Any) -> None:
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


async def test_attempt_beyond_max_runtime_is_rescued_from_a_live_worker(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await _overdue_by(conn, claim, OVERDUE_GRACE + timedelta(minutes=1))

    assert await rescue(conn) == [claim.id]

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.error) == ("pending", "max_runtime", "it ran beyond its longest time")


async def test_attempt_beyond_max_runtime_is_kept_within_the_grace(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await _overdue_by(conn, claim, OVERDUE_GRACE - timedelta(seconds=20))

    assert await rescue(conn) == []


async def test_deadline_belongs_to_one_attempt(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await _overdue_by(conn, claim, HOUR)
    await end(conn, claim, Done())

    assert await rescue(conn) == []


# ---------------------------------------------------------------------------------------------------------------------
# By somebody who knows
# ---------------------------------------------------------------------------------------------------------------------


async def test_keeper_rescues_jobs_of_a_dead_child_without_waiting_for_the_lease(conn: Any) -> None:
    """The cause is on record: out of memory, not just silence."""
    worker = await start_worker(conn, lease=HOUR)
    claim, other = await hold(conn, worker=worker), await hold(conn)

    assert await rescue_worker(conn, worker, cause="oom", error="killed by signal 9", actor="keeper-1") == [claim.id]

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.error, found.crashes) == ("pending", "oom", "killed by signal 9", 1)
    assert await state_of(conn, other.id) == "running"


async def test_keeper_can_rescue_named_jobs_of_a_dead_child(conn: Any) -> None:
    worker = await start_worker(conn)
    dead, alive = await hold(conn, worker=worker), await hold(conn, worker=worker)

    assert await rescue_worker(conn, worker, cause="signal", error="segfault", jobs=[dead.id]) == [dead.id]

    assert (await job(conn, alive.id)).attempt_id == alive.attempt_id


# ---------------------------------------------------------------------------------------------------------------------
# What hangs on the attempt goes with it
# ---------------------------------------------------------------------------------------------------------------------


async def test_rescue_releases_locks_and_wakes_waiting_jobs(conn: Any) -> None:
    from holdfast.jobs.claim import claim_by_id

    claim = await hold(conn, locks=(Lock("t"),))
    waiting = await add(conn, locks=(Lock("t"),))
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None

    await lose(conn, claim)

    assert await holders_of(conn, "t") == []
    assert await state_of(conn, waiting) == "pending"


async def test_rescued_poll_keeps_its_locks(conn: Any) -> None:
    claim = await hold(conn, locks=(Lock("t"),))
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    await lose(conn, looked)

    assert await holders_of(conn, "t") == [claim.id]


async def test_rescued_job_stays_current_in_its_slot(conn: Any) -> None:
    from holdfast.jobs.claim import claim_by_id

    claim = await hold(conn, slot_key="s")
    follow_up = await add(conn, slot_key="s")
    await lose(conn, claim)

    assert (await job(conn, claim.id)).is_current
    assert await claim_by_id(conn, await start_worker(conn), follow_up) is None, "it may not overtake"
    assert (await take(conn, claim.id)).attempt_no == 2


async def test_quarantine_frees_slot_and_locks_and_cancels_dependants(conn: Any) -> None:
    from holdfast.jobs.claim import claim_by_id

    claim = await hold(conn, slot_key="s", locks=(Lock("r"),), max_crashes=1)
    follow_up, child = await add(conn, slot_key="s"), await add(conn, after=(claim.id,))
    assert await claim_by_id(conn, await start_worker(conn), follow_up) is None

    await lose(conn, claim)

    assert await state_of(conn, follow_up) == "pending"
    assert await holders_of(conn, "r") == []
    assert await state_of(conn, child) == "cancelled"


async def test_effects_of_a_lost_attempt_are_cleaned_unless_adoptable(conn: Any) -> None:
    claim = await hold(conn)
    pod = await effects.plan(conn, claim, "pod")
    query = await effects.plan(conn, claim, "query", adoptable=True)

    await lose(conn, claim)

    assert dict(await rows(conn, "SELECT id, state FROM holdfast.effects")) == {pod.id: "unwanted", query.id: "planned"}


@pytest.mark.parametrize("lease", [EXPIRED, timedelta(0)])
async def test_expired_lease_protects_nothing(conn: Any, lease: timedelta) -> None:
    claim = await hold(conn, worker=await start_worker(conn, lease=lease))

    assert await rescue(conn) == [claim.id]
    assert await value(conn, "SELECT count(*) FROM holdfast.history") == 1


@pytest.mark.parametrize(("reason", "shown"), [("the wrong year", "the wrong year"), (None, "asked to stop")])
async def test_rescued_cancellation_keeps_its_reason(conn: Any, reason: str | None, shown: str) -> None:
    claim = await hold(conn)
    await cancel(conn, claim.id, actor="ada", reason=reason)

    await lose(conn, claim)

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.error) == ("cancelled", "cancelled", shown)
