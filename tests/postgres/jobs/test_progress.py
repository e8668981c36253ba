"""Progress and checkpoints: they never touch the state, and they are where an attempt learns that it should stop."""

from __future__ import annotations

from typing import Any

import pytest

from factories import HOUR, everything, hold, job, poll, replace, rows, submit
from holdfast.errors import CancelRequested, ClaimLost, PayloadInvalid, UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.progress import checkpoint, report


async def test_progress_is_told_without_touching_the_state(conn: Any) -> None:
    """K-50."""
    claim = await hold(conn, max_runtime=HOUR)
    rest = """SELECT state, attempt_id, attempt_no, fence_token, worker_id, claimed_at, deadline_at, run_after, finished_at,
              errors, handle, ties FROM holdfast.jobs WHERE id = %s"""
    before = await rows(conn, rest, claim.id)

    await report(conn, claim, progress=0.25, message="page 1 of 4")

    found = await job(conn, claim.id)
    assert (found.progress, found.message) == (0.25, "page 1 of 4")
    assert await rows(conn, rest, claim.id) == before


async def test_what_is_not_said_stays_as_it_was(conn: Any) -> None:
    claim = await hold(conn)
    await report(conn, claim, progress=0.5, message="half")

    await report(conn, claim, progress=0.75)
    await report(conn, claim, message="nearly")

    found = await job(conn, claim.id)
    assert (found.progress, found.message) == (0.75, "nearly")


@pytest.mark.parametrize("progress", [-0.01, 1.01, float("nan")])
async def test_progress_lies_between_nothing_and_all(conn: Any, progress: float) -> None:
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
async def test_an_attempt_that_was_asked_to_stop_hears_of_it(conn: Any, say: Any) -> None:
    """K-62."""
    claim = await hold(conn)
    await say(conn, claim)
    await cancel(conn, claim.id, actor="ada", reason="wrong year")

    with pytest.raises(CancelRequested, match="was asked to stop: wrong year") as asked:
        await say(conn, claim)

    assert (asked.value.job_id, asked.value.reason) == (claim.id, "wrong year")


@pytest.mark.parametrize("say", [report, checkpoint])
async def test_an_attempt_that_was_replaced_hears_of_it(conn: Any, say: Any) -> None:
    claim = await hold(conn)
    await replace(conn, claim)

    with pytest.raises(ClaimLost, match=r"(progress|checkpoint) refused"):
        await say(conn, claim)


async def test_a_look_at_an_engine_may_tell_how_far_it_is(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    await report(conn, looked, progress=0.5)

    assert (await job(conn, claim.id)).progress == 0.5
