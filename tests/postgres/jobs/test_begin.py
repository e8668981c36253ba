"""When an attempt has begun, and what follows if that is not known: docs/decisions/0018."""

from __future__ import annotations

from typing import Any

import pytest

from factories import HOUR, add, column, everything, hold, lose, make_due, moves_of, silence, start_worker, value
from holdfast.errors import ClaimLost
from holdfast.jobs.begin import begin, note_begun, note_begun_blocked
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import COMPLETED
from holdfast.jobs.release import release_worker
from holdfast.jobs.rescue import rescue
from holdfast.jobs.views.explain import explain


async def hold_ahead(conn: Any, count: int, **fields: Any) -> list[Claim]:
    """So many jobs that a worker with two lanes has claimed."""
    worker = await start_worker(conn, "keen", concurrency=2)
    for _ in range(count):
        await add(conn, "k", **fields)
    return await claim(conn, worker, kinds=["k"], limit=count, begins=False)


async def noted(conn: Any, seconds: float, *claims: Claim) -> list[int]:
    """The heartbeat of their worker says that these attempts have run for so long."""
    return list(await note_begun(conn, claims[0].worker_id, run_for(seconds, *claims)))


def run_for(seconds: float, *claims: Claim) -> list[Any]:
    return [(one.id, one.attempt_id, seconds) for one in claims]


async def test_max_runtime_counts_from_the_start_and_not_from_the_claim(conn: Any) -> None:
    waiting, running = await hold_ahead(conn, 2, max_runtime=HOUR)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '1 day'")

    assert await noted(conn, 60, running) == [running.id]

    assert await column(conn, waiting.id, "deadline_at") is None
    left = await value(conn, "SELECT deadline_at - clock_timestamp() FROM holdfast.jobs WHERE id = %s", running.id)
    assert 58 * 60 < left.total_seconds() < 59 * 60 + 1


async def test_start_is_written_once_and_not_before_the_claim(conn: Any) -> None:
    (held,) = await hold_ahead(conn, 1)

    await noted(conn, 86_400, held)
    first = await column(conn, held.id, "begun_at")

    assert first == await column(conn, held.id, "claimed_at")
    assert await noted(conn, 5, held) == []
    await begin(conn, held)
    assert await column(conn, held.id, "begun_at") == first


async def test_keeper_writes_the_start_only_of_jobs_that_a_blocked_worker_runs(conn: Any) -> None:
    waiting, running, other = await hold_ahead(conn, 3, max_runtime=HOUR)
    elsewhere = await start_worker(conn, "elsewhere")
    await conn.execute("UPDATE holdfast.jobs SET worker_id = %s WHERE id = %s", [elsewhere, other.id])
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '1 day'")

    await note_begun_blocked(conn, running.worker_id, [running.fence_token, other.fence_token], seconds=60)

    known = await column(conn, running.id, "begun_at")
    assert await column(conn, running.id, "deadline_at") == known + HOUR
    for one in (waiting, other):
        assert await column(conn, one.id, "begun_at") is None
        assert await column(conn, one.id, "deadline_at") is None
    await note_begun_blocked(conn, running.worker_id, [running.fence_token], seconds=1)
    assert await column(conn, running.id, "begun_at") == known, "once"


async def test_keeper_does_not_take_a_lost_attempt_that_still_runs_for_the_next(conn: Any) -> None:
    (lost,) = await hold_ahead(conn, 1, max_runtime=HOUR)
    await release_worker(conn, lost.worker_id)
    (again,) = await claim(conn, lost.worker_id, kinds=["k"], limit=1, begins=False)

    await note_begun_blocked(conn, lost.worker_id, [lost.fence_token], seconds=60)

    assert again.id == lost.id
    assert await column(conn, again.id, "begun_at") is None


async def test_start_of_an_earlier_attempt_is_not_used(conn: Any) -> None:
    (held,) = await hold_ahead(conn, 1)
    await begin(conn, held)
    await lose(conn, held)
    await make_due(conn, held.id)
    old_worker = await start_worker(conn)
    # As a worker of an earlier version claims, which does not know the column.
    await conn.execute(
        """UPDATE holdfast.jobs SET state = 'running', attempt_id = gen_random_uuid(), attempt_no = attempt_no + 1,
           worker_id = %s, claimed_at = clock_timestamp() WHERE id = %s""",
        [old_worker, held.id],
    )

    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")
    await rescue(conn)

    assert await column(conn, held.id, "crashes") == 1, "the first attempt's"
    assert await column(conn, held.id, "confirm_start")


async def test_locked_start_row_does_not_delay_the_heartbeat(conn: Any, connect: Any) -> None:
    (held,) = await hold_ahead(conn, 1)
    other = await connect()

    async with other.transaction():
        await finish(other, held, COMPLETED)
        assert await noted(conn, 9, held) == []


async def test_a_replaced_attempt_cannot_begin(conn: Any) -> None:
    (held,) = await hold_ahead(conn, 1)
    await lose(conn, held)
    before = await everything(conn)

    with pytest.raises(ClaimLost):
        await begin(conn, held)

    assert await noted(conn, 1, held) == []
    assert await everything(conn) == before


async def test_jobs_that_had_not_begun_are_not_charged_for_a_crash(conn: Any) -> None:
    claims = await hold_ahead(conn, 20, max_crashes=2)
    await noted(conn, 3, *claims[:2])

    await silence(conn, *claims)
    await rescue(conn)

    for held in claims[:2]:
        assert await column(conn, held.id, "crashes") == 1
        assert await column(conn, held.id, "alone")
    for held in claims[2:]:
        assert await column(conn, held.id, "crashes") == 0
        assert not await column(conn, held.id, "alone")
        assert await column(conn, held.id, "run_after") is None, "it runs again at once"
        assert await column(conn, held.id, "confirm_start")
    reason = await value(conn, "SELECT reason FROM holdfast.history WHERE job_id = %s", claims[5].id)
    assert reason == "its worker went silent; whether it had begun is not known, so it is not counted"


async def test_single_job_known_to_have_begun_is_not_blamed_for_the_crash(conn: Any) -> None:
    """One of the others may have begun after the last beat, and killed the process."""
    claims = await hold_ahead(conn, 5, max_crashes=1)
    await noted(conn, 3, claims[0])

    await silence(conn, *claims)
    await rescue(conn)

    assert await column(conn, claims[0].id, "state") == "pending"
    assert await column(conn, claims[0].id, "alone")


async def test_job_that_crashes_its_process_at_start_is_quarantined(conn: Any) -> None:
    """Whatever is beside it, and though no beat ever sees it run: its second start is written before it runs."""
    (poison, *_) = await hold_ahead(conn, 5, max_crashes=2)
    seen = []

    for _ in range(6):
        await silence(conn, poison)
        await rescue(conn)
        state = await column(conn, poison.id, "state")
        seen.append((state, await column(conn, poison.id, "crashes"), await column(conn, poison.id, "alone")))
        if state == "failed":
            break
        await make_due(conn, poison.id)
        worker = await start_worker(conn)
        found = await claim_by_id(conn, worker, poison.id, begins=False)
        assert found is not None
        poison = found
        if not poison.alone:
            await claim(conn, worker, kinds=["k"], begins=False)  # it has company
        assert poison.confirm_start
        await begin(conn, poison)

    assert seen == [("pending", 0, False), ("pending", 1, True), ("failed", 2, True)]
    assert await moves_of(conn, poison.id) == ["rescue", "rescue", "quarantine"]


async def test_claim_that_starts_immediately_counts_from_the_claim(conn: Any) -> None:
    held = await hold(conn, max_runtime=HOUR)

    assert await column(conn, held.id, "begun_at") >= await column(conn, held.id, "claimed_at")
    assert await column(conn, held.id, "deadline_at") is not None
    await lose(conn, held)
    assert await column(conn, held.id, "crashes") == 1


async def test_explain_distinguishes_waiting_for_a_lane_from_running(conn: Any) -> None:
    claims = await hold_ahead(conn, 4)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '48 min'")
    await noted(conn, 300, *claims[:2])

    assert await explain(conn, claims[0].id) == "It runs: attempt 1 on keen, for 5 min."
    assert await explain(conn, claims[3].id) == (
        "Attempt 1 was claimed by keen 48 min ago and waits there for a free lane; "
        "it is returned to the queue if that takes long."
    )


async def test_explain_reports_running_when_every_job_has_a_lane(conn: Any) -> None:
    (held,) = await hold_ahead(conn, 1)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '5 min'")

    assert await explain(conn, held.id) == "It runs: attempt 1 on keen, for 5 min."


async def test_reclaimed_job_has_no_start(conn: Any) -> None:
    held = await hold(conn, "k")
    await lose(conn, held)
    await make_due(conn, held.id)

    (again,) = await claim(conn, await start_worker(conn), kinds=["k"], begins=False)

    assert await column(conn, again.id, "begun_at") is None
