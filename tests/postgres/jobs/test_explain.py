"""`explain` on real rows: the facts are read right. Every sentence as such is in tests/unit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import (
    HOUR,
    KIND,
    add,
    end,
    everything,
    hold,
    lose,
    make_due,
    poll,
    publish_kinds,
    silence,
    start_worker,
    submit,
    take,
)
from holdfast.errors import NotFound
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.control import pause
from holdfast.jobs.declare import Declaration
from holdfast.jobs.model import JobId, Lock
from holdfast.jobs.outcome import Done, Fail, Retry, Snooze
from holdfast.jobs.progress import report
from holdfast.jobs.views.explain import explain


@pytest.fixture(autouse=True)
def published(database: str) -> None:
    """A worker has published the kind that these tests are about."""
    publish_kinds(database, Declaration(KIND))


async def _says(conn: Any, job_id: int) -> str:
    return await explain(conn, JobId(job_id))


async def _refused(conn: Any, job_id: int) -> None:
    assert await claim_by_id(conn, await start_worker(conn, "second"), JobId(job_id)) is None


async def test_unknown_job_is_not_found(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no job 999999999"):
        await _says(conn, 999999999)


async def test_ready_without_workers(conn: Any) -> None:
    await start_worker(conn, lease=timedelta(seconds=-1))

    assert await _says(conn, await add(conn)) == "It is ready, but no worker is alive; start one for queue 'default'."


async def test_ready_behind_others_of_its_kind(conn: Any) -> None:
    await start_worker(conn)
    for fields in ({}, {"priority": -1}, {"priority": 5}, {"queue": "other"}, {"run_after": HOUR}):
        await add(conn, **fields)
    await add(conn, "other")
    job_id = await add(conn)

    assert await _says(conn, job_id) == "It is ready; 2 k jobs in queue 'default' are ahead of it."


async def test_ready_and_next(conn: Any) -> None:
    await start_worker(conn)

    assert await _says(conn, await add(conn)) == "It is ready and next in queue 'default'; check that a worker runs k."


async def test_ready_without_a_live_worker_for_its_kind(conn: Any) -> None:
    await start_worker(conn, kinds={"k": 1}, lease=timedelta(seconds=-1))
    await start_worker(conn, kinds={"b": 1, "a": 1})
    await start_worker(conn, kinds={"b": 1})
    job_id = await add(conn)

    assert await _says(conn, job_id) == ("It is ready, but no live worker runs k; they run a, b: was its module imported?")

    await start_worker(conn)  # of their own making: it claims what it likes

    assert await _says(conn, job_id) == "It is ready and next in queue 'default'; check that a worker runs k."


async def test_ready_with_quiet_workers_only(conn: Any) -> None:
    await start_worker(conn, kinds={"other": 1})
    quiet = await start_worker(conn, kinds={"k": 1})
    await conn.execute("UPDATE holdfast.workers SET quiet_at = clock_timestamp() WHERE id = %s", [quiet])

    assert "every worker that runs k is quiet" in await _says(conn, await add(conn))


async def test_ready_in_a_queue_without_workers(conn: Any) -> None:
    await start_worker(conn, kinds={"other": 1}, queues=["slow"])
    await start_worker(conn, kinds={"k": 1}, queues=["default", "fast"])
    slow, fast = await add(conn, queue="slow"), await add(conn, queue="fast")

    assert await _says(conn, slow) == (
        "It is ready, but no live worker that runs k serves queue 'slow'; they serve default, fast: "
        "start one with --queue slow."
    )
    assert "1 worker with room can run k" in await _says(conn, fast)

    await start_worker(conn, kinds={"k": 1}, queues=["slow"])
    assert "1 worker with room can run k" in await _says(conn, slow)


async def test_ready_while_its_workers_are_busy(conn: Any) -> None:
    await start_worker(conn, kinds={"other": 1})
    first = await start_worker(conn, kinds={"k": 1}, concurrency=2)
    second = await start_worker(conn, kinds={"k": 1})
    for worker in (first, first, second):
        await hold(conn, worker=worker)
    job_id = await add(conn)

    assert await _says(conn, job_id) == "It is ready and next in queue 'default'; all 2 workers that run it are busy."

    await end(conn, await hold(conn, worker=first))
    await conn.execute("UPDATE holdfast.workers SET concurrency = 3 WHERE id = %s", [first])

    assert await _says(conn, job_id) == ("It is ready and next in queue 'default'; 1 worker with room can run k.")


async def test_polls_do_not_make_a_worker_busy(conn: Any) -> None:
    worker = await start_worker(conn, kinds={"k": 1})
    claimed = await hold(conn, worker=worker)
    await submit(conn, claimed)
    await poll(conn, claimed.id, worker=worker)

    assert "1 worker with room can run k" in await _says(conn, await add(conn))


async def test_delayed(conn: Any) -> None:
    assert await _says(conn, await add(conn, run_after=2 * HOUR)) == "It runs in 2 h."


async def test_delayed_after_an_error(conn: Any) -> None:
    claim = await hold(conn)
    await end(conn, claim, Retry("the warehouse sleeps", 2 * HOUR))

    assert await _says(conn, claim.id) == "It runs in 2 h after 1 error, the last: the warehouse sleeps"


async def test_snoozed_shows_its_reason_and_no_earlier_error(conn: Any) -> None:
    claimed = await hold(conn)
    await end(conn, claimed, Retry("busy", delay=timedelta(0)))
    await end(conn, await take(conn, claimed.id), Snooze(HOUR, "the mart is being rebuilt"))

    assert await _says(conn, claimed.id) == "It runs in 60 min: its handler snoozed it: the mart is being rebuilt."

    await make_due(conn, claimed.id)
    await end(conn, await take(conn, claimed.id), Snooze(HOUR))

    assert await _says(conn, claimed.id) == "It runs in 60 min: its handler snoozed it."


async def test_delayed_after_a_crash_shows_the_cause(conn: Any) -> None:
    claimed = await hold(conn, max_crashes=5)
    await lose(conn, claimed)
    await lose(conn, await take(conn, claimed.id))
    await conn.execute("UPDATE holdfast.jobs SET run_after = run_after + interval '1 hour'")

    assert await _says(conn, claimed.id) == (
        "It runs in 60 min, because its process was lost twice (lease_lost): its worker went silent."
    )


async def test_waiting_for_a_free_lock_while_its_kind_is_paused(conn: Any) -> None:
    """A paused kind is not woken: it would only come to wait elsewhere."""
    holder = await hold(conn, "other", locks=(Lock("t"),))
    waiting = await add(conn, locks=(Lock("t"),))
    await _refused(conn, waiting)
    await pause(conn, "k", actor="ada", reason="mending")
    await end(conn, holder)

    assert await _says(conn, waiting) == (
        "It waits for lock 't', which is free, but k is paused by ada: mending; resume it to go on."
    )


async def test_pause_of_the_kind_is_reported_before_pause_of_all_kinds(conn: Any) -> None:
    job_id = await add(conn)
    await pause(conn, actor="eve")
    everything_paused = await _says(conn, job_id)
    await pause(conn, "k", actor="ada", reason="slow")

    assert everything_paused == "It could run, but everything is paused by eve; resume it to go on."
    assert await _says(conn, job_id) == "It could run, but k is paused by ada: slow; resume it to go on."


async def test_running_shows_message_and_cancellation_request(conn: Any) -> None:
    claim = await hold(conn, worker=await start_worker(conn, "pod-3"))
    await report(conn, claim, message="page 3 of 9")
    await cancel(conn, claim.id, actor="ada")
    await conn.execute(
        "UPDATE holdfast.jobs SET (claimed_at, begun_at) = (claimed_at - interval '5 min', begun_at - interval '5 min')"
    )

    assert await _says(conn, claim.id) == "It runs: attempt 1 on pod-3, for 5 min; it was asked to stop: page 3 of 9."


async def test_running_on_a_worker_with_an_expired_lease(conn: Any) -> None:
    claim = await hold(conn, worker=await start_worker(conn, "pod-3"))
    await silence(conn, claim)

    assert await _says(conn, claim.id) == "Attempt 1 ran on pod-3, whose lease has expired; the next sweep rescues it."


async def test_submitted(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim, poll_after=2 * HOUR)

    assert await _says(conn, claim.id) == "An external engine works on it; the next poll is in 2 h (poll 1)."


async def test_waiting_for_parents_names_the_next_parent(conn: Any) -> None:
    done, first, second = await hold(conn), await add(conn, "fetch"), await add(conn)
    child = await add(conn, after=(done.id, first, second))
    await end(conn, done)

    assert await _says(conn, child) == f"It waits for 2 parents to end, next job {first} (fetch), which is pending."


async def test_waiting_for_a_lock_names_holder_and_lease_end(conn: Any) -> None:
    holder = await hold(conn, "compact", worker=await start_worker(conn, "pod-1", lease=2 * HOUR), locks=(Lock("table:a"),))
    first, second = await add(conn, locks=(Lock("table:a"),)), await add(conn, locks=(Lock("table:a"),))
    await _refused(conn, first), await _refused(conn, second)

    assert await _says(conn, second) == (
        f"It waits for lock 'table:a': job {holder.id} (compact) holds it on pod-1, "
        "whose lease runs for another 2 h and is renewed until the job ends; "
        f"job {first} (k) waits before it."
    )


async def test_waiting_for_a_lock_held_by_a_job_that_does_not_run(conn: Any) -> None:
    holder = await hold(conn, "compact", locks=(Lock("table:a"),))
    await submit(conn, holder)
    waiting = await add(conn, locks=(Lock("table:a"),))
    await _refused(conn, waiting)

    assert await _says(conn, waiting) == f"It waits for lock 'table:a': job {holder.id} (compact) holds it."


async def test_waiting_for_a_lock_that_is_free(conn: Any) -> None:
    await hold(conn, locks=(Lock("table:a"),))
    waiting = await add(conn, locks=(Lock("table:a"),))
    await _refused(conn, waiting)
    await conn.execute("DELETE FROM holdfast.lock_holders")

    assert await _says(conn, waiting) == (
        "It waits for lock 'table:a', which is free: the next sweep wakes it in a few seconds."
    )


async def test_waiting_for_a_slot_names_its_holder(conn: Any) -> None:
    holder = await hold(conn, "recalc", worker=await start_worker(conn, "pod-1"), slot_key="year:2024")
    follow_up = await add(conn, slot_key="year:2024")
    await _refused(conn, follow_up)
    await silence(conn, holder)

    assert await _says(conn, follow_up) == (
        f"It waits for slot 'year:2024': job {holder.id} (recalc) holds it on pod-1, whose lease has expired: "
        "the next sweep rescues it."
    )


async def test_every_end_state_has_its_sentence(conn: Any) -> None:
    done, failed, poison, cancelled = [await hold(conn, max_crashes=1) for _ in range(4)]
    await end(conn, done, Done())
    await end(conn, failed, Fail("no such table"))
    await lose(conn, poison)
    await cancel(conn, cancelled.id, actor="ada", reason="wrong year", force=True)
    await conn.execute("UPDATE holdfast.jobs SET finished_at = finished_at - interval '5 min'")

    assert [await _says(conn, claim.id) for claim in (done, failed, poison, cancelled)] == [
        "Completed 5 min ago in attempt 1.",
        "Failed 5 min ago after 1 error of 3 allowed: no such table",
        "Quarantined 5 min ago: its process crashed once, the last time by lease_lost; fix the cause, then rerun it.",
        "Cancelled 5 min ago: wrong year.",
    ]


async def test_explain_changes_nothing(conn: Any) -> None:
    claim = await hold(conn, locks=(Lock("t"),), slot_key="s")
    await submit(conn, claim)
    await poll(conn, claim.id)
    waiting = await add(conn, locks=(Lock("t"),))
    await _refused(conn, waiting)
    await take(conn, await add(conn))
    before = await everything(conn)

    await _says(conn, waiting), await _says(conn, claim.id)

    assert await everything(conn) == before
