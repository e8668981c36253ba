"""A replaced attempt writes nothing, nowhere, however it was replaced: every write after a claim, times every way to lose it.

K-14 to K-19, E-04, E-34, E-48, E-49. Each test compares every row of every table before and after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from factories import (
    add,
    end,
    everything,
    hold,
    holders_of,
    job,
    lose,
    make_due,
    poll,
    replace,
    silence,
    start_worker,
    state_of,
    submit,
    take,
)
from holdfast.errors import ClaimLost
from holdfast.jobs import effects, progress
from holdfast.jobs.cancel import cancel
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import Claim, Lock, NewJob
from holdfast.jobs.outcome import Cancel, Done, Fail, Retry, Snooze, Submitted, decide, released, released_poll
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.recover import recover
from holdfast.jobs.renew import renew
from holdfast.jobs.rerun import rerun
from holdfast.jobs.rescue import rescue_worker

Step = Callable[[Any, Claim], Awaitable[Any]]

# ---------------------------------------------------------------------------------------------------------------------
# How an attempt can lose its job
# ---------------------------------------------------------------------------------------------------------------------


async def _rescued(conn: Any, claim: Claim) -> None:
    await lose(conn, claim)


async def _rescued_by_its_keeper(conn: Any, claim: Claim) -> None:
    await rescue_worker(conn, claim.worker_id, cause="oom", error="killed")


async def _replaced(conn: Any, claim: Claim) -> None:
    await replace(conn, claim)


async def _replaced_by_its_own_worker(conn: Any, claim: Claim) -> None:
    await lose(conn, claim)
    await take(conn, claim.id, claim.worker_id)


async def _replaced_by_one_that_has_finished(conn: Any, claim: Claim) -> None:
    await end(conn, await replace(conn, claim), Done("the successor's"))


async def _replaced_by_one_that_submitted(conn: Any, claim: Claim) -> None:
    await submit(conn, await replace(conn, claim))


async def _recovered(conn: Any, claim: Claim) -> None:
    await silence(conn, claim)
    await recover(conn, claim.id, actor="ada")


async def _cancelled_by_force(conn: Any, claim: Claim) -> None:
    await cancel(conn, claim.id, actor="ada", force=True)


async def _cancelled_and_run_again(conn: Any, claim: Claim) -> None:
    await cancel(conn, claim.id, actor="ada", force=True)
    await rerun(conn, claim.id, actor="ada")
    await take(conn, claim.id)


async def _quarantined(conn: Any, claim: Claim) -> None:
    await conn.execute("UPDATE holdfast.jobs SET max_crashes = 1 WHERE id = %s", [claim.id])
    await lose(conn, claim)


async def _finished_already(conn: Any, claim: Claim) -> None:
    await end(conn, claim, Done("the first"))


async def _given_back(conn: Any, claim: Claim) -> None:
    await finish(conn, claim, released("shutdown"))


WAYS = [
    _rescued,
    _rescued_by_its_keeper,
    _replaced,
    _replaced_by_its_own_worker,
    _replaced_by_one_that_has_finished,
    _replaced_by_one_that_submitted,
    _recovered,
    _cancelled_by_force,
    _cancelled_and_run_again,
    _quarantined,
    _finished_already,
    _given_back,
]

# ---------------------------------------------------------------------------------------------------------------------
# What it may still try
# ---------------------------------------------------------------------------------------------------------------------


async def _publish_must_not_run(conn: Any) -> None:
    raise AssertionError("publish was called for an attempt that was replaced")


async def _write_a_row(conn: Any) -> None:
    await conn.execute("INSERT INTO holdfast.controls (kind, reason) VALUES ('published', 'too late')")


def _ends_with(ended_with: object) -> Step:
    async def try_it(conn: Any, claim: Claim) -> None:
        await finish(conn, claim, decide(claim, ended_with))

    return try_it


async def _releases(conn: Any, claim: Claim) -> None:
    await finish(conn, claim, released("shutdown"))


async def _releases_a_poll(conn: Any, claim: Claim) -> None:
    await finish(conn, claim._replace(handle="h"), released_poll(claim._replace(handle="h"), "shutdown"))


async def _completes_in_a_batch(conn: Any, claim: Claim) -> None:
    if not await complete_plain(conn, [claim], ['"late"']):
        raise ClaimLost(claim.id, claim.attempt_id, "complete")


async def _chains_in_one_commit(conn: Any, claim: Claim) -> None:
    if await complete_and_chain(conn, claim, '"late"', NewJob("next")) is None:
        raise ClaimLost(claim.id, claim.attempt_id, "chain")


async def _reports(conn: Any, claim: Claim) -> None:
    await progress.report(conn, claim, progress=0.9, message="still here")


async def _comes_to_a_checkpoint(conn: Any, claim: Claim) -> None:
    await progress.checkpoint(conn, claim)


async def _plans_an_effect(conn: Any, claim: Claim) -> None:
    await effects.plan(conn, claim, "query")


WRITES: dict[str, Step] = {
    "complete": _ends_with(Done("late")),
    "complete and publish": _ends_with(Done(publish=_publish_must_not_run)),
    "prepare and complete": _ends_with(Done(prepare=_write_a_row)),
    "complete with children": _ends_with(Done(then=[NewJob("next"), NewJob("next")])),
    "complete with a join": _ends_with(Done(then=[NewJob("next")], join=NewJob("join"))),
    "complete in a batch": _completes_in_a_batch,
    "complete and hold the next step": _chains_in_one_commit,
    "submit": _ends_with(Submitted("late")),
    "snooze": _ends_with(Snooze(timedelta(seconds=1))),
    "retry": _ends_with(Retry("late")),
    "fail": _ends_with(Fail("late")),
    "cancel": _ends_with(Cancel("late")),
    "fail by surprise": _ends_with(ValueError("late")),
    "release": _releases,
    "release a poll": _releases_a_poll,
    "report progress": _reports,
    "checkpoint": _comes_to_a_checkpoint,
    "plan an effect": _plans_an_effect,
}


@pytest.mark.parametrize("lose_it", WAYS, ids=lambda way: way.__name__.strip("_"))
async def test_no_write_of_a_lost_attempt_changes_any_row(conn: Any, lose_it: Step) -> None:
    """Z-08: each write after the claim, with its fence rotated in each way."""
    stale = await hold(conn, max_attempts=9, max_crashes=9)
    await lose_it(conn, stale)
    before = await everything(conn)

    for name, write in WRITES.items():
        with pytest.raises(ClaimLost):
            await write(conn, stale)
        assert await everything(conn) == before, name


@pytest.mark.parametrize("lose_it", WAYS, ids=lambda way: way.__name__.strip("_"))
async def test_next_heartbeat_reports_the_lost_attempt(conn: Any, lose_it: Step) -> None:
    """K-16, Z-08."""
    stale = await hold(conn, max_attempts=9, max_crashes=9)
    healthy = await hold(conn)
    await lose_it(conn, stale)

    beat = await renew(conn, stale.worker_id, [stale, healthy], lease=timedelta(minutes=5))

    assert beat.lost == [stale.attempt_id]


@pytest.mark.parametrize(
    "lose_it", [_replaced, _replaced_by_its_own_worker, _cancelled_and_run_again], ids=lambda way: way.__name__.strip("_")
)
async def test_lost_attempt_cannot_release_the_lock_or_slot_of_its_successor(conn: Any, lose_it: Step) -> None:
    """K-27, T-05, E-49."""
    stale = await hold(conn, max_crashes=9, slot_key="s", locks=(Lock("t"), Lock("u")))
    follow_up = await add(conn, slot_key="s", locks=(Lock("t"),))
    await lose_it(conn, stale)
    before = await everything(conn)

    for name, write in WRITES.items():
        with pytest.raises(ClaimLost):
            await write(conn, stale)
        assert await everything(conn) == before, name

    assert await holders_of(conn, "t") == [stale.id]
    assert (await job(conn, stale.id)).is_current
    assert await state_of(conn, follow_up) in ("pending", "blocked")


async def test_lost_attempt_can_neither_confirm_nor_adopt_effects(conn: Any) -> None:
    first = await hold(conn, max_crashes=9)
    query = await effects.plan(conn, first, "query", adoptable=True)
    second = await replace(conn, first)
    await effects.adopt(conn, second, query, "handle-2")
    pod = await effects.plan(conn, second, "pod")
    third = await replace(conn, second)
    before = await everything(conn)

    for stale, effect in ((first, query), (second, query), (second, pod)):
        with pytest.raises(ClaimLost):
            await effects.confirm(conn, stale, effect, "late")
        with pytest.raises(ClaimLost):
            await effects.adopt(conn, stale, effect, "late")

    assert await everything(conn) == before
    with pytest.raises(ClaimLost):
        await effects.confirm(conn, third, query, "not adopted, so not its to confirm")


async def test_lost_poll_cannot_overwrite_the_next_poll(conn: Any) -> None:
    """K-39, K-40."""
    claim = await hold(conn, max_crashes=9)
    await submit(conn, claim, {"next_uri": "1"})
    slow = await poll(conn, claim.id)
    await lose(conn, slow)
    fast = await poll(conn, claim.id)
    await end(conn, fast, Submitted({"next_uri": "2"}))
    before = await everything(conn)

    for late in (Submitted({"next_uri": "late"}), Done("late"), Fail("late"), ConnectionError("late"), Retry("late")):
        with pytest.raises(ClaimLost):
            await end(conn, slow, late)

    assert await everything(conn) == before


async def test_attempt_of_one_job_cannot_write_another(conn: Any) -> None:
    mine, other = await hold(conn), await hold(conn)
    forged = mine._replace(id=other.id)
    before = await everything(conn)

    for name, write in WRITES.items():
        with pytest.raises(ClaimLost):
            await write(conn, forged)
        assert await everything(conn) == before, name


async def test_the_right_worker_with_the_wrong_attempt_is_still_refused(conn: Any) -> None:
    """E-34: the name of the pod is no fence."""
    worker = await start_worker(conn)
    first = await hold(conn, worker=worker)
    second = await hold(conn, worker=worker)
    before = await everything(conn)

    with pytest.raises(ClaimLost):
        await finish(conn, first._replace(attempt_id=second.attempt_id), decide(first, None))

    assert await everything(conn) == before


async def test_slow_holder_loses_to_its_replacement(conn: Any) -> None:
    """K-19: at most one attempt's end is ever accepted."""
    slow = await hold(conn)
    fast = await replace(conn, slow)

    with pytest.raises(ClaimLost, match=f"job {slow.id} is no longer held under attempt {slow.attempt_id}"):
        await end(conn, slow, Done("slow"))
    await end(conn, fast, Done("fast"))
    await make_due(conn, slow.id)

    assert (await job(conn, slow.id)).result == "fast"


async def test_finish_after_the_lease_but_before_a_rescue_is_accepted(conn: Any) -> None:
    """P4: the fence decides and not the clock; the work is done, and throwing it away would help nobody."""
    late = await hold(conn)
    await silence(conn, late)

    await end(conn, late, Done("late but mine"))

    assert (await job(conn, late.id)).result == "late but mine"
