"""Progress and checkpoints: they never touch the state, and they are where an attempt learns that it should stop."""

from __future__ import annotations

from typing import Any

import pytest

from factories import (
    HOUR,
    end,
    everything,
    hold,
    job,
    lose,
    make_due,
    poll,
    replace,
    rows,
    silence,
    state_of,
    submit,
    take,
)
from holdfast.errors import CancelRequested, ClaimLost, PayloadInvalid, UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import Fail, Retry, Snooze, Submitted, released
from holdfast.jobs.progress import checkpoint, report
from holdfast.jobs.recover import recover


async def test_progress_does_not_change_the_state(conn: Any) -> None:
    """K-50."""
    claim = await hold(conn, max_runtime=HOUR)
    rest = """SELECT state, attempt_id, attempt_no, fence_token, worker_id, claimed_at, deadline_at, run_after, finished_at,
              errors, handle, ties FROM holdfast.jobs WHERE id = %s"""
    before = await rows(conn, rest, claim.id)

    await report(conn, claim, progress=0.25, message="page 1 of 4")

    found = await job(conn, claim.id)
    assert (found.progress, found.message) == (0.25, "page 1 of 4")
    assert await rows(conn, rest, claim.id) == before


async def test_omitted_values_stay_unchanged(conn: Any) -> None:
    claim = await hold(conn)
    await report(conn, claim, progress=0.5, message="half")

    await report(conn, claim, progress=0.75)
    await report(conn, claim, message="nearly")

    found = await job(conn, claim.id)
    assert (found.progress, found.message) == (0.75, "nearly")


@pytest.mark.parametrize("progress", [-0.01, 1.01, float("nan")])
async def test_progress_is_between_0_and_1(conn: Any, progress: float) -> None:
    claim = await hold(conn)

    with pytest.raises(UsageError, match="between 0 and 1"):
        await report(conn, claim, progress=progress)


async def test_a_message_that_cannot_be_stored_is_refused(conn: Any) -> None:
    claim = await hold(conn)
    before = await everything(conn)

    with pytest.raises(PayloadInvalid, match="the message contains a NUL"):
        await report(conn, claim, message="a\x00")

    assert await everything(conn) == before


@pytest.mark.parametrize("say", [report, checkpoint])
async def test_progress_reports_a_cancellation_request(conn: Any, say: Any) -> None:
    """K-62."""
    claim = await hold(conn)
    await say(conn, claim)
    await cancel(conn, claim.id, actor="ada", reason="wrong year")

    with pytest.raises(CancelRequested, match="was asked to stop: wrong year") as asked:
        await say(conn, claim)

    assert (asked.value.job_id, asked.value.reason) == (claim.id, "wrong year")


@pytest.mark.parametrize("say", [report, checkpoint])
async def test_progress_reports_a_lost_claim(conn: Any, say: Any) -> None:
    claim = await hold(conn)
    await replace(conn, claim)

    with pytest.raises(ClaimLost, match=r"(progress|checkpoint) refused"):
        await say(conn, claim)


async def test_poll_can_report_progress(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    await report(conn, looked, progress=0.5)

    assert (await job(conn, claim.id)).progress == 0.5


# ---------------------------------------------------------------------------------------------------------------------
# Whose progress it is
# ---------------------------------------------------------------------------------------------------------------------


async def _told(conn: Any, claim: Claim) -> Claim:
    await report(conn, claim, progress=0.8, message="nearly there")
    return claim


async def _seen(conn: Any, job_id: int) -> tuple[float | None, str | None]:
    found = await job(conn, job_id)
    return None if found.progress is None else round(found.progress, 3), found.message


async def _retried(conn: Any) -> int:
    claim = await _told(conn, await hold(conn))
    await end(conn, claim, Retry("busy"))
    return claim.id


async def _snoozed(conn: Any) -> int:
    claim = await _told(conn, await hold(conn))
    await end(conn, claim, Snooze(HOUR))
    return claim.id


async def _given_back(conn: Any) -> int:
    claim = await _told(conn, await hold(conn))
    await finish(conn, claim, released("shutdown"))
    return claim.id


async def _rescued(conn: Any) -> int:
    claim = await _told(conn, await hold(conn))
    await lose(conn, claim)
    return claim.id


async def _recovered(conn: Any) -> int:
    claim = await _told(conn, await hold(conn))
    await silence(conn, claim)
    await recover(conn, claim.id, actor="ada")
    return claim.id


async def _lost_by_its_engine(conn: Any) -> int:
    claim = await hold(conn)
    await submit(conn, claim)
    await end(conn, await _told(conn, await poll(conn, claim.id)), Retry("unknown query"))
    return claim.id


@pytest.mark.parametrize("put_back", [_retried, _snoozed, _given_back, _rescued, _recovered, _lost_by_its_engine])
async def test_new_attempt_starts_without_progress(conn: Any, put_back: Any) -> None:
    """What the next attempt has not said is not shown as if it had."""
    job_id = await put_back(conn)
    assert await _seen(conn, job_id) == (None, None)

    await make_due(conn, job_id)
    await take(conn, job_id)

    assert await _seen(conn, job_id) == (None, None)


async def _asked_again(conn: Any, looked: Claim) -> None:
    await end(conn, looked, Submitted("query-1"))


async def _asked_in_vain(conn: Any, looked: Claim) -> None:
    await end(conn, looked, ConnectionError("reset"))


async def _taken_from_it(conn: Any, looked: Claim) -> None:
    await silence(conn, looked)
    await recover(conn, looked.id, actor="ada")


@pytest.mark.parametrize("goes_on", [_asked_again, _asked_in_vain, lose, _taken_from_it])
async def test_progress_of_submitted_work_stays_between_polls(conn: Any, goes_on: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)

    await goes_on(conn, await _told(conn, await poll(conn, claim.id)))

    assert await _seen(conn, claim.id) == (0.8, "nearly there")


async def _failed(conn: Any, claim: Claim) -> None:
    await end(conn, claim, Fail("no"))


async def _quarantined(conn: Any, claim: Claim) -> None:
    await lose(conn, claim)
    assert await state_of(conn, claim.id) == "failed"


@pytest.mark.parametrize("over", [_failed, _quarantined])
async def test_ended_job_keeps_its_last_progress(conn: Any, over: Any) -> None:
    claim = await _told(conn, await hold(conn, max_crashes=1))

    await over(conn, claim)

    assert await _seen(conn, claim.id) == (0.8, "nearly there")
