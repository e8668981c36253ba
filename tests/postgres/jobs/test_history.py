"""The history: every attempt has one row, written by the transaction that ended it; every act of a person has one, too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import (
    HOUR,
    add,
    end,
    hold,
    lose,
    make_due,
    moves_of,
    poll,
    replace,
    rows,
    silence,
    start_worker,
    submit,
    take,
    value,
)
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import Cancel, Done, Fail, Retry, Snooze, Submitted, released
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun
from holdfast.jobs.rescue import rescue_worker
from holdfast.jobs.views.history import history

# An attempt is over when its row says so; the row of the job and the row of the history carry the same transaction.
SAME_TRANSACTION = """
    SELECT (h.xid::text::numeric %% 4294967296)::bigint = j.xmin::text::bigint
    FROM holdfast.history h JOIN holdfast.jobs j ON j.id = h.job_id WHERE j.id = %s ORDER BY h.id DESC LIMIT 1
"""


async def _in_a_batch(conn: Any, claim: Any) -> None:
    await complete_plain(conn, [claim], [None])


async def _with_the_next_step(conn: Any, claim: Any) -> None:
    await complete_and_chain(conn, claim, None, NewJob("next"))


async def _released(conn: Any, claim: Any) -> None:
    await finish(conn, claim, released("shutdown"))


async def _lost(conn: Any, claim: Any) -> None:
    await lose(conn, claim)


async def _taken_by_its_keeper(conn: Any, claim: Any) -> None:
    await rescue_worker(conn, claim.worker_id, cause="oom", error="killed")


async def _quarantined(conn: Any, claim: Any) -> None:
    await conn.execute("UPDATE holdfast.jobs SET max_crashes = 1 WHERE id = %s", [claim.id])
    await lose(conn, claim)


async def _recovered(conn: Any, claim: Any) -> None:
    await silence(conn, claim)
    await recover(conn, claim.id, actor="ada")


async def _forced(conn: Any, claim: Any) -> None:
    await cancel(conn, claim.id, actor="ada", force=True)


ENDS: dict[str, tuple[Any, str, str]] = {
    "done": (Done(), "complete", "completed"),
    "done in a batch": (_in_a_batch, "complete", "completed"),
    "done with the next step": (_with_the_next_step, "complete", "completed"),
    "failed": (Fail("no"), "fail", "failed"),
    "cancelled by itself": (Cancel("no"), "cancel", "cancelled"),
    "retried": (Retry("no"), "retry", "pending"),
    "failed by surprise": (ValueError("no"), "retry", "pending"),
    "snoozed": (Snooze(timedelta(seconds=1)), "snooze", "pending"),
    "submitted": (Submitted("q"), "submit", "submitted"),
    "released": (_released, "release", "pending"),
    "rescued": (_lost, "rescue", "pending"),
    "rescued by its keeper": (_taken_by_its_keeper, "rescue", "pending"),
    "quarantined": (_quarantined, "quarantine", "failed"),
    "recovered": (_recovered, "recover", "pending"),
    "cancelled by force": (_forced, "cancel", "cancelled"),
}


@pytest.mark.parametrize(("ended_by", "move", "state"), ENDS.values(), ids=ENDS.keys())
async def test_an_attempt_ends_with_one_row_in_the_same_transaction(conn: Any, ended_by: Any, move: str, state: str) -> None:
    claim = await hold(conn)

    await (ended_by(conn, claim) if callable(ended_by) else end(conn, claim, ended_by))

    (entry,) = await history(conn, claim.id)
    assert (entry.move, entry.state) == (move, state)
    assert (entry.attempt_no, entry.attempt_id, entry.worker_id) == (1, claim.attempt_id, claim.worker_id)
    assert entry.claimed_at is not None
    assert entry.claimed_at <= entry.at
    assert await value(conn, SAME_TRANSACTION, claim.id) is True


async def test_history_has_every_change_of_a_job(conn: Any) -> None:
    """Every attempt exactly once, in its order, and every act of a person."""
    job_id = await add(conn, max_attempts=9, max_crashes=9)
    attempts = []
    for ended_by in (ValueError("odd"), Snooze(HOUR), "lost", Submitted("q")):
        claim = await take(conn, job_id)
        attempts.append(claim.attempt_id)
        await (lose(conn, claim) if ended_by == "lost" else end(conn, claim, ended_by))
        await make_due(conn, job_id)
    looked = await poll(conn, job_id)
    attempts.append(looked.attempt_id)
    await cancel(conn, job_id, actor="ada")
    await end(conn, looked, Fail("no"))
    await rerun(conn, job_id, actor="ada", reason="mended")
    last = await take(conn, job_id)
    attempts.append(last.attempt_id)
    await end(conn, last)

    entries = await history(conn, job_id)
    assert [entry.move for entry in entries] == ["retry", "snooze", "rescue", "submit", "act", "fail", "rerun", "complete"]
    assert [entry.attempt_id for entry in entries if entry.attempt_id] == attempts
    assert [entry.attempt_no for entry in entries if entry.attempt_id] == [1, 2, 3, 4, 5, 6]
    assert [entry.actor for entry in entries] == [None, None, "rescue", None, "ada", None, "ada", None]
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


async def test_block_and_wake_are_in_the_history_with_their_reason(conn: Any) -> None:
    holder = await hold(conn, locks=(Lock("table:a"),))
    waiting = await add(conn, locks=(Lock("table:a"),))
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None
    await end(conn, holder)

    found = [(entry.move, entry.state, entry.reason, entry.attempt_id) for entry in await history(conn, waiting)]
    assert found == [("block", "blocked", "lock table:a", None), ("wake", "pending", "a lock came free", None)]


async def test_refused_write_adds_no_history_row(conn: Any) -> None:
    stale = await hold(conn)
    await replace(conn, stale)
    before = await moves_of(conn, stale.id)

    assert await complete_plain(conn, [stale], [None]) == set()

    assert await moves_of(conn, stale.id) == before


async def test_row_time_is_the_clock_and_not_the_start_of_the_transaction(conn: Any) -> None:
    claim = await hold(conn)
    async with conn.transaction():
        started = await value(conn, "SELECT now()")
        await end(conn, claim)

    (entry,) = await history(conn, claim.id)
    assert entry.at > started


async def test_new_job_has_no_history(conn: Any) -> None:
    assert await history(conn, await add(conn)) == []


async def test_code_and_database_have_the_same_moves(conn: Any) -> None:
    from holdfast.jobs.states import Move

    claim = await hold(conn)
    await submit(conn, claim)
    await end(conn, await poll(conn, claim.id), Retry("again"))
    await cancel(conn, claim.id, actor="ada")

    written = {move for (move,) in await rows(conn, "SELECT DISTINCT move FROM holdfast.history")}
    assert written <= {*Move, "act"}
