"""The heartbeat: one row, one update, and an answer that saves an idle worker every other statement."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from factories import (
    EXPIRED,
    HOUR,
    LEASE,
    add,
    clock,
    end,
    hold,
    holders_of,
    lose,
    poll,
    replace,
    rows,
    silence,
    start_worker,
    submit,
    take,
    value,
)
from holdfast.jobs import effects
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.model import Lock, WorkerId
from holdfast.jobs.outcome import Fail
from holdfast.jobs.renew import Beat, WorkerInfo, register, renew, resign
from holdfast.jobs.rescue import rescue


async def _beat(conn: Any, worker: WorkerId | None = None) -> Beat:
    return await renew(conn, worker or await start_worker(conn), lease=LEASE, kinds=["k"])


async def _lease(conn: Any, worker: str) -> Any:
    return await value(conn, "SELECT lease_until FROM holdfast.workers WHERE id = %s", worker)


async def test_heartbeat_extends_the_lease_by_the_database_clock(conn: Any) -> None:
    """K-21, K-22."""
    worker = await start_worker(conn, lease=EXPIRED)
    before = await clock(conn)

    beat = await renew(conn, worker, lease=HOUR)

    assert beat.known
    assert before + HOUR <= await _lease(conn, worker) <= await clock(conn) + HOUR


async def test_lock_lasts_while_its_holder_sends_heartbeats(conn: Any) -> None:
    """K-21, K-27: a lock has no lease of its own, so the beat that renews the worker's renews all that its jobs hold."""
    holder = await hold(conn, locks=(Lock("t"),))
    waiting = await add(conn, locks=(Lock("t"),))

    await renew(conn, holder.worker_id, [holder], lease=HOUR)
    await _pass(conn, LEASE)  # the lease under which it was taken

    assert await rescue(conn) == []
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None
    assert await holders_of(conn, "t") == [holder.id]

    await _pass(conn, HOUR)  # and no further beat

    assert await rescue(conn) == [holder.id]
    await take(conn, waiting)
    assert await holders_of(conn, "t") == [waiting]
    assert (await renew(conn, holder.worker_id, [holder], lease=HOUR)).lost == [holder.attempt_id]
    assert await holders_of(conn, "t") == [waiting], "a late beat brings nothing back"


async def _pass(conn: Any, time: timedelta) -> None:
    await conn.execute("UPDATE holdfast.workers SET lease_until = lease_until - %s", [time])


async def test_heartbeat_counts_from_now_and_not_from_the_start_of_the_transaction(conn: Any) -> None:
    """P7."""
    worker = await start_worker(conn)
    async with conn.transaction():
        started = await value(conn, "SELECT now()")
        await renew(conn, worker, lease=HOUR)

    assert await _lease(conn, worker) > started + HOUR


async def test_heartbeat_updates_one_narrow_row(conn: Any) -> None:
    worker = await start_worker(conn)
    claims = [await hold(conn, worker=worker) for _ in range(20)]
    versions = "SELECT id, xmin::text FROM holdfast.jobs ORDER BY id"
    before = await rows(conn, versions)

    await renew(conn, worker, claims, lease=LEASE)

    assert await rows(conn, versions) == before


async def test_heartbeat_renews_only_its_own_worker(conn: Any) -> None:
    other = await start_worker(conn)
    before = await _lease(conn, other)

    await _beat(conn)

    assert await _lease(conn, other) == before


async def test_heartbeat_without_a_registration_asks_to_register_again(conn: Any) -> None:
    beat = await renew(conn, WorkerId(str(uuid4())), lease=LEASE)

    assert not beat.known
    assert await rows(conn, "SELECT FROM holdfast.workers") == []


async def test_heartbeat_returns_lost_and_cancelled_attempts(conn: Any) -> None:
    """K-16."""
    worker = await start_worker(conn)
    lost = await hold(conn, worker=worker)
    await lose(conn, lost)
    healthy, asked = await hold(conn, worker=worker), await hold(conn, worker=worker)
    await cancel(conn, asked.id, actor="ada")

    beat = await renew(conn, worker, [healthy, lost, asked], lease=LEASE)

    assert (beat.lost, beat.cancelled) == ([lost.attempt_id], [asked.attempt_id])


async def test_cancellation_of_the_successor_is_not_reported_to_the_lost_attempt(conn: Any) -> None:
    first = await hold(conn)
    second = await replace(conn, first)
    await cancel(conn, second.id, actor="ada")

    beat = await renew(conn, first.worker_id, [first], lease=LEASE)

    assert (beat.lost, beat.cancelled) == ([first.attempt_id], [])


async def test_heartbeat_reports_that_there_is_no_work(conn: Any) -> None:
    await end(conn, await hold(conn))
    await end(conn, await hold(conn), Fail("no"))

    beat = await _beat(conn)

    told = asdict(beat)
    assert told.pop("known") is True
    assert not any(told.values())


async def _pending(conn: Any) -> None:
    await add(conn)


async def _due_poll(conn: Any) -> None:
    await submit(conn, await hold(conn), poll_after=EXPIRED)


async def _silent_holder(conn: Any) -> None:
    await silence(conn, await hold(conn))


async def _overdue_attempt(conn: Any) -> None:
    claim = await hold(conn, max_runtime=HOUR)
    await conn.execute("UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - interval '1 min' WHERE id = %s", [claim.id])


async def _unwanted_effect(conn: Any) -> None:
    claim = await hold(conn)
    await effects.plan(conn, claim, "query")
    await end(conn, claim, Fail("no"))


async def _waits_for_a_lock(conn: Any) -> None:
    await hold(conn, locks=(Lock("t"),))
    assert await claim_by_id(conn, await start_worker(conn), await add(conn, locks=(Lock("t"),))) is None


async def _waits_for_a_slot(conn: Any) -> None:
    await hold(conn, slot_key="s")
    assert await claim_by_id(conn, await start_worker(conn), await add(conn, slot_key="s")) is None


@pytest.mark.parametrize(
    ("arrange", "flag"),
    [
        (_pending, "can_claim"),
        (_due_poll, "can_poll"),
        (_silent_holder, "can_rescue"),
        (_overdue_attempt, "can_rescue"),
        (_unwanted_effect, "can_clean"),
        (_waits_for_a_lock, "can_wake"),
        (_waits_for_a_slot, "can_wake"),
    ],
)
async def test_heartbeat_reports_available_work(conn: Any, arrange: Any, flag: str) -> None:
    """An idle worker needs no other statement."""
    await arrange(conn)

    beat = await _beat(conn)

    flags = {name for name in ("can_claim", "can_poll", "can_rescue", "can_clean", "can_wake") if getattr(beat, name)}
    assert flags == {flag}


async def test_heartbeat_finds_a_claim_whose_response_was_lost(conn: Any) -> None:
    """E-04: once it has been unknown for longer than an answer can take."""
    worker = await start_worker(conn)
    known, lost, fresh = [await hold(conn, worker=worker) for _ in range(3)]
    await hold(conn)
    await conn.execute(
        "UPDATE holdfast.jobs SET claimed_at = claimed_at - %s WHERE id = ANY (%s)", [2 * LEASE, [known.id, lost.id]]
    )

    beat = await renew(conn, worker, [known], lease=LEASE)

    assert beat.strays == [lost.attempt_id]
    assert fresh.attempt_id not in beat.strays


async def test_heartbeat_ignores_work_of_other_kinds_and_queues(conn: Any) -> None:
    await add(conn, "other")
    await add(conn, queue="other")

    assert not (await _beat(conn)).can_claim


async def test_heartbeat_returns_the_next_due_time_and_the_next_poll(conn: Any) -> None:
    await add(conn, run_after=HOUR)
    await add(conn, run_after=2 * HOUR)
    await submit(conn, await hold(conn), poll_after=3 * HOUR)

    beat = await _beat(conn)

    assert HOUR - timedelta(minutes=1) < beat.next_due <= HOUR  # type: ignore[operator]
    assert 3 * HOUR - timedelta(minutes=1) < beat.next_poll <= 3 * HOUR  # type: ignore[operator]
    assert not beat.can_claim
    assert not beat.can_poll


async def test_late_heartbeat_does_not_revive_a_resigned_worker(conn: Any) -> None:
    claim = await hold(conn)
    await resign(conn, claim.worker_id)

    beat = await renew(conn, claim.worker_id, [claim], lease=LEASE)

    assert not beat.known
    assert await value(conn, "SELECT lease_until <= stopped_at FROM holdfast.workers WHERE id = %s", claim.worker_id)
    assert await rescue(conn) == [claim.id]


async def test_resign_makes_jobs_available_immediately(conn: Any) -> None:
    claim = await hold(conn)

    await resign(conn, claim.worker_id)

    assert await rescue(conn) == [claim.id]


async def test_register_revives_a_worker(conn: Any) -> None:
    info = WorkerInfo(WorkerId(str(uuid4())), "pod-1", "host", 12, "1.0", "abc")
    await register(conn, info, lease=EXPIRED)
    await resign(conn, info.id)

    await register(conn, info, lease=HOUR)

    ((name, host, pid, version, sha, stopped),) = await rows(
        conn, "SELECT name, host, pid, version, git_sha, stopped_at FROM holdfast.workers"
    )
    assert (name, host, pid, version, sha, stopped) == ("pod-1", "host", 12, "1.0", "abc", None)
    assert await _lease(conn, info.id) > await clock(conn)


async def test_two_starts_of_one_pod_are_two_workers(conn: Any) -> None:
    """E-34: the name is for people, the incarnation is the identity."""
    first, second = await start_worker(conn, "pod-1"), await start_worker(conn, "pod-1")
    claim = await hold(conn, worker=first)
    await silence(conn, claim)

    await renew(conn, second, lease=LEASE)

    assert await rescue(conn) == [claim.id], "the new pod-1 does not keep the jobs of the old one alive"


async def test_running_poll_is_held_like_any_attempt(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    assert (await renew(conn, looked.worker_id, [looked], lease=LEASE)).lost == []
    await lose(conn, looked)
    assert (await renew(conn, looked.worker_id, [looked], lease=LEASE)).lost == [looked.attempt_id]
