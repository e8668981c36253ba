"""The wait queue of a lock: no job overtakes a waiter before it, and no waiter blocks others forever."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from factories import add, end, hold, holders_of, rows, start_worker, state_of, take, waits
from holdfast.errors import LockBusy
from holdfast.jobs import claim as claiming
from holdfast.jobs import locks
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.control import pause, resume
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId, Lock, NewJob
from holdfast.jobs.promote import wake_forgotten
from holdfast.jobs.views.explain import explain

WRITER, READER = (Lock("t"),), (Lock("t", most=None),)
LAPSE = "UPDATE holdfast.lock_wants SET woken_at = woken_at - interval '1 minute' WHERE woken_at IS NOT NULL"


async def _try(conn: Any, job_id: int) -> Any:
    return await claim_by_id(conn, await start_worker(conn), JobId(job_id))


async def _waiting(conn: Any, locks: Any, **fields: Any) -> int:
    """A job whose claim was refused, and that waits for a lock."""
    job_id = await add(conn, locks=locks, **fields)
    assert await _try(conn, job_id) is None
    assert await state_of(conn, job_id) == "blocked"
    return job_id


async def _states(conn: Any, *jobs: int) -> list[str]:
    return [await state_of(conn, job_id) for job_id in jobs]


async def test_later_shared_jobs_do_not_overtake_a_waiting_exclusive_job(conn: Any) -> None:
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER)
    later = [await _waiting(conn, READER) for _ in range(20)]

    await end(conn, reader)

    assert await _states(conn, writer, *later) == ["pending", *["blocked"] * 20]
    await end(conn, await take(conn, writer))
    assert set(await _states(conn, *later)) == {"pending"}, "and those behind it come in together"


async def test_finish_wakes_no_job_behind_a_blocked_exclusive_job(conn: Any) -> None:
    first, second = await hold(conn, locks=READER), await hold(conn, locks=READER)
    writer, behind = await _waiting(conn, WRITER), await _waiting(conn, READER)

    await end(conn, first)
    still = await _states(conn, writer, behind)
    await end(conn, second)

    assert still == ["blocked", "blocked"]
    assert await _states(conn, writer, behind) == ["pending", "blocked"]


async def test_batch_with_an_exclusive_job_and_later_shared_jobs(conn: Any) -> None:
    await hold(conn, locks=READER)
    writer, *later = [await add(conn, locks=wanted) for wanted in (WRITER, READER, READER)]

    assert await claim(conn, await start_worker(conn), kinds=["k"]) == []

    assert await _states(conn, writer, *later) == ["blocked"] * 3


async def test_shared_claim_sees_an_exclusive_job_that_decides_to_wait(connect: Any) -> None:
    conn, first, second = await connect(), await connect(), await connect()
    await hold(conn, locks=READER)
    writer, reader = await add(conn, locks=WRITER), await add(conn, locks=READER)
    worker = await start_worker(conn)

    async with first.transaction():
        assert await claim_by_id(first, worker, JobId(writer)) is None
        claiming = asyncio.create_task(claim_by_id(second, worker, JobId(reader)))
        await waits(conn, second)

    assert await claiming is None
    assert await _states(conn, writer, reader) == ["blocked", "blocked"]


async def test_woken_exclusive_job_keeps_its_place_until_claimed(conn: Any) -> None:
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER)
    await end(conn, reader)

    late = await _waiting(conn, READER)

    assert await holders_of(conn, "t") == []
    await end(conn, await take(conn, writer))
    assert await state_of(conn, late) == "pending"


async def test_woken_job_that_is_not_claimed_loses_its_place_after_a_while(conn: Any) -> None:
    """No worker runs its kind, or all are busy: the others go on with the next sweep, and it gets its turn when it comes."""
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER)
    await end(conn, reader)
    behind = await _waiting(conn, READER)

    await wake_forgotten(conn)
    early = await state_of(conn, behind)
    await conn.execute(LAPSE)
    await wake_forgotten(conn)

    assert (early, await state_of(conn, behind)) == ("blocked", "pending")
    await take(conn, behind)
    assert await _try(conn, writer) is None
    await _waiting(conn, READER)  # it stands in the line again


async def test_smaller_priority_value_goes_first(conn: Any) -> None:
    await hold(conn, locks=READER)
    await _waiting(conn, WRITER)

    assert (await hold(conn, locks=READER, priority=-1)).attempt_no == 1


async def test_an_older_job_of_the_same_priority_goes_first(conn: Any) -> None:
    older = await add(conn, locks=READER)
    await hold(conn, locks=READER)
    await _waiting(conn, WRITER)

    assert (await take(conn, older)).attempt_no == 1


@pytest.mark.parametrize("woken", [False, True])
async def test_cancel_of_a_waiter_wakes_the_jobs_behind_it(conn: Any, woken: bool) -> None:
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER)
    if woken:
        await end(conn, reader)
    behind = await _waiting(conn, READER)

    await cancel(conn, JobId(writer), actor="ada")

    assert await state_of(conn, behind) == "pending"


async def test_claim_concurrent_with_the_cancel_of_its_predecessor_is_woken(connect: Any) -> None:
    """The cancel has the writer's row and not yet the key: the reader still sees the writer, waits, and is woken."""
    conn, cancelling, other = await connect(), await connect(), await connect()
    await hold(conn, locks=READER)
    writer, reader = await _waiting(conn, WRITER), await add(conn, locks=READER)

    async with other.transaction():
        await other.execute("SELECT FROM holdfast.lock_keys WHERE key = 't' FOR UPDATE")
        act = asyncio.create_task(cancel(cancelling, JobId(writer), actor="ada"))
        await waits(conn, cancelling)
        assert await _try(other, reader) is None
    await act

    assert await _states(conn, writer, reader) == ["cancelled", "pending"]


async def test_paused_waiter_does_not_block_others(conn: Any) -> None:
    await hold(conn, locks=READER)
    paused, behind = await _waiting(conn, WRITER, kind="paused"), await _waiting(conn, READER)

    await pause(conn, "paused", actor="ada")
    await wake_forgotten(conn)

    assert await _states(conn, paused, behind) == ["blocked", "pending"]
    assert (await take(conn, behind)).attempt_no == 1
    assert (await hold(conn, locks=READER)).attempt_no == 1, "a newcomer passes it, too"
    await resume(conn, "paused")
    await _waiting(conn, READER)


async def test_waiter_for_one_key_does_not_reserve_its_free_keys(conn: Any) -> None:
    """B may never come free: the readers of A do not wait for that."""
    await hold(conn, locks=(Lock("b"),))
    await _waiting(conn, (Lock("a"), Lock("b")))

    readers = [await hold(conn, locks=(Lock("a", most=None),)) for _ in range(3)]

    assert await holders_of(conn, "a") == [reader.id for reader in readers]


async def test_waiter_for_two_keys_reserves_each_until_it_was_free_once(conn: Any) -> None:
    reader = await hold(conn, locks=(Lock("a", most=None),))
    await hold(conn, locks=(Lock("b"),))
    both = await _waiting(conn, (Lock("a"), Lock("b")))
    behind = await _waiting(conn, (Lock("a", most=None),))

    await end(conn, reader)
    woken = await _states(conn, both, behind)
    assert await _try(conn, both) is None, "b is still held"

    assert woken == ["pending", "blocked"]
    assert await _states(conn, both, behind) == ["blocked", "pending"], "it waits for b only, and those at a go on at once"
    assert await rows(conn, "SELECT key FROM holdfast.lock_wants WHERE waiting AND job_id = %s", both) == [("b",)]


async def test_waiter_for_a_slot_does_not_reserve_its_lock(conn: Any) -> None:
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER, slot_key="s")
    behind = await _waiting(conn, READER)
    current = await hold(conn, "other", slot_key="s")
    await end(conn, reader)
    assert await _try(conn, writer) is None, "its slot was taken meanwhile"

    await wake_forgotten(conn)

    assert await state_of(conn, behind) == "pending"
    await end(conn, current)
    assert await state_of(conn, writer) == "pending"


async def test_enqueue_with_reject_does_not_overtake_waiters(conn: Any) -> None:
    shared = Lock("t", most=None, when_busy="reject")
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER)

    with pytest.raises(LockBusy, match=f"is held by job {reader.id}"):
        await enqueue(conn, NewJob("k", locks=(shared,)))
    await end(conn, reader)
    with pytest.raises(LockBusy, match=f"is reserved for job {writer}, which waits for it") as refused:
        await enqueue(conn, NewJob("k", locks=(shared,)))

    assert (refused.value.key, refused.value.holder) == ("t", writer)
    assert (await enqueue(conn, NewJob("k", locks=(shared,), priority=-1))).created


async def test_sweep_wakes_jobs_behind_a_paused_waiter_only(conn: Any) -> None:
    await hold(conn, locks=READER)
    await _waiting(conn, WRITER, kind="paused")
    writer, reader = await _waiting(conn, WRITER), await _waiting(conn, READER)
    await pause(conn, "paused", actor="ada")

    await wake_forgotten(conn)

    assert await _states(conn, writer, reader) == ["blocked", "blocked"]


async def test_explain_names_the_waiters_before_the_job(conn: Any) -> None:
    reader = await hold(conn, locks=READER)
    writer = await _waiting(conn, WRITER)
    behind = await _waiting(conn, READER)
    beside = await explain(conn, JobId(behind))
    await end(conn, reader)

    assert beside.startswith(f"It waits for lock 't': job {reader.id} (k) holds it")
    assert beside.endswith(f"; job {writer} (k) waits before it.")
    assert await explain(conn, JobId(behind)) == f"It waits for lock 't': job {writer} (k) is next and waits before it."


async def test_claim_of_an_uncontended_lock_needs_no_extra_statement(conn: Any, monkeypatch: Any) -> None:
    """Six round trips, as before there were lines."""
    job_id, worker = await add(conn, locks=READER), await start_worker(conn)
    said: list[object] = []
    execute = psycopg.AsyncCursor.execute

    async def listen(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        said.append(query)
        return await execute(cursor, query, *args, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", listen)
    assert await claim_by_id(conn, worker, JobId(job_id)) is not None

    known = {text: name for module in (claiming, locks) for name, text in vars(module).items() if isinstance(text, str)}
    assert [known[text] for text in said] == [  # type: ignore[index]
        *("CLAIM_BY_ID", "HOLD_TIED", "READ_WANTS", "HOLD_KEYS", "READ_KEYS", "CLAIM_TIED", "TAKE_AGAIN", "TAKE"),
    ]
