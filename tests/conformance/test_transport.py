"""One suite for both transports: a replaced attempt writes nothing, and a claim has one owner.

K-14 to K-19 and E-34 over both transports. Each refusal compares every row of every table before and after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from factories import (
    add,
    column,
    end,
    everything,
    hold,
    job,
    lose,
    moves_of,
    poll,
    replace,
    rows,
    start_worker,
    state_of,
    submit,
    take,
    together,
    value,
)
from holdfast.errors import CancelRequested, ClaimLost, HoldfastError, PayloadInvalid, UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.declare import Declaration, as_json
from holdfast.jobs.logs import Numbered
from holdfast.jobs.model import Claim, JobId, Lock, NewJob, WorkerId
from holdfast.jobs.outcome import Cancel, Done, Fail, Retry, Snooze, Submitted, decide, released, released_poll
from holdfast.jobs.parents import Parent
from holdfast.jobs.periodic.schedule import Schedule
from holdfast.jobs.renew import WorkerInfo
from holdfast.jobs.rescue import rescue_worker
from holdfast.telemetry.kept import Line
from holdfast.worker.transports.interface import Takes, Transport

TAKES = Takes({"k": 1}, ("default",))
LEASE = timedelta(minutes=5)
Step = Callable[[Transport, Claim], Awaitable[Any]]


def a_worker(**fields: Any) -> WorkerInfo:
    return WorkerInfo(WorkerId(str(uuid4())), "worker", "host", 1, "1", kinds={"k": 1}, **fields)


# ---------------------------------------------------------------------------------------------------------------------
# A replaced attempt
# ---------------------------------------------------------------------------------------------------------------------


def _ends_with(ended_with: object) -> Step:
    async def try_it(transport: Transport, claim: Claim) -> None:
        await transport.finish(claim, decide(claim, ended_with))

    return try_it


async def _releases(transport: Transport, claim: Claim) -> None:
    await transport.finish(claim, released("shutdown"))


async def _releases_a_poll(transport: Transport, claim: Claim) -> None:
    polled = claim._replace(handle="h")
    await transport.finish(polled, released_poll(polled, "shutdown"))


async def _completes_in_a_batch(transport: Transport, claim: Claim) -> None:
    if not await transport.complete([claim], ['"late"']):
        raise ClaimLost(claim.id, claim.attempt_id, "complete")


async def _chains(transport: Transport, claim: Claim) -> None:
    if await transport.complete_and_chain(claim, '"late"', NewJob("k")) is None:
        raise ClaimLost(claim.id, claim.attempt_id, "chain")


async def _reports(transport: Transport, claim: Claim) -> None:
    await transport.progress(claim, 0.9, "still here")


async def _checks(transport: Transport, claim: Claim) -> None:
    await transport.checkpoint(claim)


async def _plans(transport: Transport, claim: Claim) -> None:
    await transport.plan(claim, "query", tag=None, detail=None, temporary=False, adoptable=False)


async def _logs(transport: Transport, claim: Claim) -> None:
    line = Line("2026-01-01T00:00:00+00:00", "info", "late", {})
    if claim.attempt_id not in await transport.write_logs([Numbered(claim, 1, line)]):
        raise ClaimLost(claim.id, claim.attempt_id, "logs")


WRITES: dict[str, Step] = {
    "complete": _ends_with(Done("late")),
    "complete with children": _ends_with(Done(then=[NewJob("k"), NewJob("k")])),
    "complete with a join": _ends_with(Done(then=[NewJob("k")], join=NewJob("k"))),
    "complete in a batch": _completes_in_a_batch,
    "complete and hold the next step": _chains,
    "submit": _ends_with(Submitted("late")),
    "snooze": _ends_with(Snooze(timedelta(seconds=1))),
    "retry": _ends_with(Retry("late")),
    "fail": _ends_with(Fail("late")),
    "cancel": _ends_with(Cancel("late")),
    "fail by surprise": _ends_with(ValueError("late")),
    "release": _releases,
    "release a poll": _releases_a_poll,
    "report progress": _reports,
    "checkpoint": _checks,
    "plan an effect": _plans,
    "keep what it logs": _logs,
}


async def _rescued(conn: Any, claim: Claim) -> None:
    await lose(conn, claim)


async def _replaced(conn: Any, claim: Claim) -> None:
    await replace(conn, claim)


async def _replaced_by_its_own_worker(conn: Any, claim: Claim) -> None:
    await lose(conn, claim)
    await take(conn, claim.id, claim.worker_id)


async def _take_over(conn: Any, claim: Claim) -> None:
    """Its own worker lost it and has it again, and whatever else that worker holds is left alone."""
    await rescue_worker(conn, claim.worker_id, cause="crash", error="gone", jobs=[claim.id])
    await take(conn, claim.id, claim.worker_id)


async def _replaced_by_one_that_submitted(conn: Any, claim: Claim) -> None:
    await submit(conn, await replace(conn, claim))


async def _cancelled_by_force(conn: Any, claim: Claim) -> None:
    await cancel(conn, claim.id, actor="ada", force=True)


async def _finished_already(conn: Any, claim: Claim) -> None:
    await end(conn, claim, Done("the first"))


WAYS = [
    _rescued,
    _replaced,
    _replaced_by_its_own_worker,
    _replaced_by_one_that_submitted,
    _cancelled_by_force,
    _finished_already,
]


@pytest.mark.parametrize("lose_it", WAYS, ids=lambda way: way.__name__.strip("_"))
async def test_no_write_of_a_lost_attempt_changes_any_row(transport: Transport, conn: Any, lose_it: Any) -> None:
    """K-14, K-15, K-17, K-18, K-19, P2, Z-08."""
    stale = await hold(conn, max_attempts=9, max_crashes=9, locks=(Lock("t"),), slot_key="s")
    await lose_it(conn, stale)
    before = await everything(conn)

    for name, write in WRITES.items():
        with pytest.raises(ClaimLost):
            await write(transport, stale)
        assert await everything(conn) == before, name


async def test_writes_of_the_holding_attempt_are_accepted(transport: Transport, conn: Any) -> None:
    """The other half: a suite in which everything is refused would pass the test above, too."""
    for name, write in WRITES.items():
        mine = await hold(conn)
        before = await everything(conn)
        await write(transport, mine)
        if name != "checkpoint":
            assert await everything(conn) != before, name


async def test_lost_attempt_can_neither_confirm_nor_adopt_effects(transport: Transport, conn: Any) -> None:
    first = await hold(conn, max_crashes=9)
    query = await transport.plan(first, "query", tag=None, detail={"a": 1}, temporary=False, adoptable=True)
    second = await replace(conn, first)
    assert [one.tag for one in await transport.left_behind(second)] == [query.tag]
    adopted = await transport.adopt(second, query, "handle-2")
    assert (adopted.attempt_id, adopted.handle, adopted.detail) == (second.attempt_id, "handle-2", {"a": 1})
    pod = await transport.plan(second, "pod", tag="mine", detail=None, temporary=True, adoptable=False)
    assert (await transport.confirm(second, pod, {"uid": 7})).handle == {"uid": 7}
    await replace(conn, second)
    before = await everything(conn)

    for stale, effect in ((first, query), (second, query), (second, pod)):
        with pytest.raises(ClaimLost):
            await transport.confirm(stale, effect, "late")
        with pytest.raises(ClaimLost):
            await transport.adopt(stale, effect, "late")

    assert await everything(conn) == before


async def test_lost_poll_cannot_overwrite_the_next_poll(transport: Transport, conn: Any) -> None:
    """K-39, K-40."""
    claim = await hold(conn, max_crashes=9)
    await submit(conn, claim, {"next_uri": "1"})
    slow = await poll(conn, claim.id)
    await lose(conn, slow)
    fast = await poll(conn, claim.id)
    await transport.finish(fast, decide(fast, Submitted({"next_uri": "2"})))
    before = await everything(conn)

    for late in (Submitted({"next_uri": "late"}), Done("late"), Fail("late"), ConnectionError("late"), Retry("late")):
        with pytest.raises(ClaimLost):
            await transport.finish(slow, decide(slow, late))

    assert await everything(conn) == before


async def test_batch_accepts_held_jobs_and_refuses_the_rest(transport: Transport, conn: Any) -> None:
    """K-14: each row of a batch is fenced by itself."""
    worker = await start_worker(conn)
    good, stale = await hold(conn, worker=worker), await hold(conn, worker=worker, max_crashes=9)
    tied = await hold(conn, worker=worker, locks=(Lock("t"),))
    await _take_over(conn, stale)

    written = await transport.complete([good, stale, tied], ['{"n": 1}', '"late"', None])

    assert written == {good.id}
    assert (await job(conn, good.id)).result == {"n": 1}
    assert [await state_of(conn, one.id) for one in (stale, tied)] == ["running", "running"]


async def test_follower_runs_in_the_transaction_of_the_end(transport: Transport, conn: Any) -> None:
    await conn.execute(
        "CREATE TABLE holdfast.calls (job_id bigint, state text);"
        " CREATE FUNCTION holdfast.note_call(job holdfast.jobs, old_state text) RETURNS void LANGUAGE sql AS"
        " $$ INSERT INTO holdfast.calls VALUES (job.id, job.state) $$"
    )
    plain, failed = await hold(conn), await hold(conn)
    await conn.execute("INSERT INTO holdfast.job_followers VALUES ('k', 'holdfast.note_call')")

    await transport.complete([plain], [None])
    await transport.finish(failed, decide(failed, Fail("no")))

    called = "SELECT c.job_id, c.state FROM holdfast.calls c JOIN holdfast.jobs j ON j.id = c.job_id AND j.xmin = c.xmin"
    assert sorted(await rows(conn, called)) == [(plain.id, "completed"), (failed.id, "failed")]


async def test_heartbeat_returns_lost_and_cancelled_attempts(transport: Transport, conn: Any) -> None:
    """K-16: a renewal cannot revive an attempt."""
    me = a_worker()
    await transport.register(me, lease=LEASE)
    lost, asked, healthy = [await hold(conn, worker=me.id) for _ in range(3)]
    await _take_over(conn, lost)
    await cancel(conn, asked.id, actor="ada")
    pulse = transport.pulse()

    beat = await pulse.beat(me, [lost, asked, healthy], TAKES, lease=LEASE)
    await pulse.close()

    assert (beat.known, beat.lost, beat.cancelled) == (True, [lost.attempt_id], [asked.attempt_id])


async def test_progress_and_checkpoint_report_a_cancellation_request(transport: Transport, conn: Any) -> None:
    claim = await hold(conn)
    await transport.progress(claim, 0.5, "half")
    await cancel(conn, claim.id, actor="ada", reason="enough")

    for ask in (transport.checkpoint(claim), transport.progress(claim, 0.6, None)):
        with pytest.raises(CancelRequested) as asked:
            await ask
        assert (asked.value.job_id, asked.value.reason) == (claim.id, "enough")
    assert (await job(conn, claim.id)).message == "half"


# ---------------------------------------------------------------------------------------------------------------------
# Claiming
# ---------------------------------------------------------------------------------------------------------------------


async def test_concurrent_claims_give_every_job_one_owner(make: Any, conn: Any) -> None:
    """K-08."""
    jobs = [await add(conn) for _ in range(60)]
    transports = [make() for _ in range(4)]
    for transport in transports:
        await transport.open()

    async def claim_all(transport: Transport) -> list[Claim]:
        me = a_worker()
        await transport.register(me, lease=LEASE)
        claimed: list[Claim] = []
        while batch := (await transport.claim(me.id, TAKES, 3)).claims:
            claimed += batch
        return claimed

    claimed = [claim for share in await together(*map(claim_all, transports)) for claim in share]
    for transport in transports:
        await transport.close()

    assert sorted(claim.id for claim in claimed) == jobs
    assert len({claim.attempt_id for claim in claimed}) == len(jobs)


async def test_concurrent_claims_by_id_succeed_once(make: Any, conn: Any) -> None:
    one, other, me = make(), make(), a_worker()
    for transport in (one, other):
        await transport.open()
        await transport.register(me, lease=LEASE)
    for _ in range(10):
        wanted = await add(conn)
        got = await together(one.claim_by_id(me.id, TAKES, wanted), other.claim_by_id(me.id, TAKES, wanted))
        assert sum(claim is not None for claim in got) == 1
    assert await one.claim_by_id(me.id, TAKES, JobId(10**12)) is None
    for transport in (one, other):
        await transport.close()


async def test_claim_has_everything_that_the_attempt_needs(transport: Transport, conn: Any) -> None:
    me = a_worker()
    await transport.register(me, lease=LEASE)
    payload = {"text": 'ü 🙂 \\ " \n', "deep": [[[{"n": 1.5}]]], "big": 2**60, "none": None}
    job_id = await add(conn, payload=payload, max_runtime=timedelta(seconds=1.5), max_attempts=7, kind_version=1)

    ((claim,), _, _) = await transport.claim(me.id, TAKES, 5)

    (row,) = await rows(conn, "SELECT attempt_id::text, fence_token, worker_id::text FROM holdfast.jobs WHERE id = %s", job_id)
    assert (claim.attempt_id, claim.fence_token, claim.worker_id) == row
    assert (claim.id, claim.payload, claim.max_runtime, claim.max_attempts) == (job_id, payload, timedelta(seconds=1.5), 7)


async def test_due_poll_is_claimed(transport: Transport, conn: Any) -> None:
    me = a_worker()
    await transport.register(me, lease=LEASE)
    claim = await hold(conn)
    await transport.finish(claim, decide(claim, Submitted({"uri": 1}, poll_after=timedelta(hours=1))))
    assert await transport.claim_to_poll(me.id, TAKES, 10) == []
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp()")

    (look,) = await transport.claim_to_poll(me.id, TAKES, 10)

    assert (look.id, look.handle, look.poll_count, look.is_poll) == (claim.id, {"uri": 1}, 1, True)


# ---------------------------------------------------------------------------------------------------------------------
# Ending
# ---------------------------------------------------------------------------------------------------------------------


async def test_children_and_join_keep_all_fields(transport: Transport, conn: Any) -> None:
    claim = await hold(conn)
    child = NewJob(
        "k",
        {"n": 1},
        queue="q",
        priority=-3,
        run_after=timedelta(hours=1),
        max_attempts=9,
        max_runtime=timedelta(seconds=90),
        kind_version=4,
        locks=(Lock("t", most=3), Lock("shared", most=None)),
        step="first",
    )

    await transport.finish(claim, decide(claim, Done({"r": 1}, then=[child, NewJob("k")], join=NewJob("j"))))

    made = await rows(
        conn,
        """SELECT kind, queue, priority, payload, max_attempts, max_runtime, kind_version, step, parent_id, state,
                  run_after > clock_timestamp() + interval '50 min' FROM holdfast.jobs WHERE id <> %s ORDER BY id""",
        claim.id,
    )
    assert made[0] == ("k", "q", -3, {"n": 1}, 9, timedelta(seconds=90), 4, "first", claim.id, "pending", True)
    assert [row[9] for row in made] == ["pending", "pending", "blocked"]
    assert await rows(conn, "SELECT key, most FROM holdfast.lock_wants ORDER BY key") == [("shared", None), ("t", 3)]
    assert (await job(conn, claim.id)).result == {"r": 1}


async def test_next_step_of_a_chain_is_claimed_in_the_same_commit(transport: Transport, conn: Any) -> None:
    claim = await hold(conn)

    following = await transport.complete_and_chain(claim, '{"done": 1}', NewJob("k", {"left": 1}))

    assert following is not None
    assert (following.parent_id, following.payload, following.worker_id) == (claim.id, {"left": 1}, claim.worker_id)
    assert await state_of(conn, claim.id) == "completed"
    assert await column(conn, following.id, "attempt_id::text") == following.attempt_id
    same = "SELECT p.xid = c.created_xid FROM holdfast.history p, holdfast.jobs c WHERE p.job_id = %s AND c.id = %s"
    assert await value(conn, same, claim.id, following.id)


async def test_an_error_is_written_with_its_traceback(transport: Transport, conn: Any) -> None:
    claim = await hold(conn)

    await transport.finish(claim, decide(claim, ValueError("no \x00 such \ud800 thing")))

    assert "ValueError: no" in (await job(conn, claim.id)).error
    assert "traceback" in await value(conn, "SELECT detail FROM holdfast.history WHERE job_id = %s", claim.id)


async def test_value_that_cannot_be_stored_is_refused_with_the_reason(transport: Transport, conn: Any) -> None:
    claim = await hold(conn)
    deep: Any = []
    for _ in range(300):
        deep = [deep]

    for odd in (object(), deep, float("nan"), "x" * 1_100_000, "a\x00b"):
        with pytest.raises(PayloadInvalid):
            await transport.finish(claim, decide(claim, Done(odd)))
    lock = Lock("busy", when_busy="reject")
    await add(conn, locks=(lock,))
    with pytest.raises(HoldfastError, match="is held by"):
        await transport.finish(claim, decide(claim, Done(then=[NewJob("k", locks=(lock,))])))

    assert await state_of(conn, claim.id) == "running"
    await transport.finish(claim, decide(claim, None))


async def test_end_is_found_by_its_attempt(transport: Transport, conn: Any) -> None:
    """P13."""
    ended, running, taken = await hold(conn), await hold(conn), await hold(conn, max_crashes=9)
    await transport.finish(ended, decide(ended, Retry("later")))
    await lose(conn, taken)

    assert await transport.was_written(ended) is True
    assert await transport.was_written(running) is False
    with pytest.raises(ClaimLost):
        await transport.was_written(taken)


# ---------------------------------------------------------------------------------------------------------------------
# Coming and going
# ---------------------------------------------------------------------------------------------------------------------


async def test_worker_registers_renews_and_resigns_by_the_database_clock(transport: Transport, conn: Any, sort: str) -> None:
    me = a_worker(pod="pod-1", git_sha="abc", concurrency=7)
    await transport.register(me, lease=LEASE)
    read = "SELECT pod, git_sha, concurrency, kinds, runner FROM holdfast.workers WHERE id = %s"
    runner = "remote" if sort == "remote" else "worker"
    assert await rows(conn, read, me.id) == [("pod-1", "abc", 7, {"k": 1}, runner)]

    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp()")
    pulse = transport.pulse()
    await pulse.beat(me, [], TAKES, lease=LEASE)
    left = "SELECT lease_until - clock_timestamp() FROM holdfast.workers WHERE id = %s"
    assert await value(conn, left, me.id) > timedelta(minutes=4)
    stranger = a_worker()
    assert not (await pulse.beat(stranger, [], TAKES, lease=LEASE)).known
    await pulse.close()

    await transport.resign(me.id)
    assert await value(conn, left, me.id) <= timedelta(0)


async def test_delayed_jobs_are_promoted_when_due(transport: Transport, conn: Any) -> None:
    due, later = await add(conn, run_after=timedelta(hours=1)), await add(conn, run_after=timedelta(hours=1))
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE id = %s", [due])

    jobs, next_due = await transport.promote()

    assert jobs == 1
    assert next_due is not None
    assert timedelta(minutes=1) < next_due <= timedelta(hours=1)
    assert [await column(conn, one, "run_after IS NULL") for one in (due, later)] == [True, False]


async def test_new_job_wakes_a_listening_worker(make: Any, conn: Any) -> None:
    transport, woken, me = make(), asyncio.Event(), a_worker()
    await transport.open()
    await transport.register(me, lease=LEASE)
    assert await transport.claim(me.id, TAKES, 1) == ([], [], False)
    listening = asyncio.create_task(transport.listen(lambda _: woken.set()))
    try:
        for _ in range(3):
            await asyncio.sleep(0.1)
            woken.clear()
            made = await add(conn)
            await asyncio.wait_for(woken.wait(), 60)
            ((claim,), _, _) = await transport.claim(me.id, TAKES, 1)
            assert claim.id == made
            await transport.finish(claim, decide(claim, None))
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await transport.close()


async def test_connection_is_available_or_the_error_names_the_fix(transport: Transport, sort: str, conn: Any) -> None:
    claim = await hold(conn)
    publish = decide(claim, Done(publish=_publish))
    if sort == "direct":
        async with transport.connection() as inner:
            assert await value(inner, "SELECT 1") == 1
        await transport.finish(claim, publish)
        return
    with pytest.raises(UsageError, match="a remote worker has none: pass the data in the payload"):
        transport.connection()
    with pytest.raises(UsageError, match="a remote worker has none: put the data into the result"):
        await transport.finish(claim, publish)
    assert await moves_of(conn, claim.id) == []


async def _publish(conn: Any) -> None:
    await conn.execute("SELECT 1")


# ---------------------------------------------------------------------------------------------------------------------
# What a handler reads, and what is due
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_handler_reads_the_results_of_its_parents(transport: Transport, conn: Any) -> None:
    first, second = await hold(conn), await hold(conn)
    joined = await add(conn, after=(second.id, first.id))
    await end(conn, first, Done({"rows": 1}))
    await end(conn, second, Done([2]))

    found = await transport.parents(await take(conn, joined))

    assert found == [Parent(second.id, "k", None, "completed", [2]), Parent(first.id, "k", None, "completed", {"rows": 1})]


async def test_promote_enqueues_periodic_jobs(transport: Transport, conn: Any) -> None:
    worker = a_worker()
    declared = as_json(Declaration("k", periodic=Schedule(timedelta(hours=1))))
    await transport.publish(worker, [declared])
    assert await value(conn, "SELECT every FROM holdfast.periodic_jobs WHERE kind = 'k'") == timedelta(hours=1)
    await conn.execute("UPDATE holdfast.periodic_jobs SET next_due_at = clock_timestamp()")

    promoted = await transport.promote()

    assert promoted.jobs == 1
    assert promoted.next_due is not None
    assert promoted.next_due > timedelta(minutes=59)
