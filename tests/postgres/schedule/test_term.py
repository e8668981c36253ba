"""The row of a loop: one taker, one term, and nothing for those whose term is over."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from factories import Conn, everything, rows, together, value, waits
from holdfast.database.statements import run_async
from holdfast.errors import TermLost
from holdfast.schedule.registry import Loop, Result
from holdfast.schedule.term import end, ensure, give_back, guard, renew, take
from loop_factories import HOUR, LONG, column, look, loop, make_due, nothing, outcomes, silence, taken

MINUTE = timedelta(minutes=1)


async def test_a_new_loop_is_due_one_interval_from_now_s_03(conn: Conn) -> None:
    """S-03"""
    await ensure(conn, [Loop("tidy", nothing, every=HOUR)])

    left = await value(conn, "SELECT next_due_at - clock_timestamp() FROM holdfast.loops")
    assert HOUR - MINUTE < left <= HOUR


async def test_loop_can_run_immediately_after_registration(conn: Conn) -> None:
    term = await taken(conn, loop())

    assert term.number == 1


async def test_needed_loop_runs_at_start(conn: Conn) -> None:
    """E-20: not only when a database has never seen the loop. A tick that went well before is no reason not to."""
    needed = True

    async def is_needed(_: Conn) -> bool:
        return needed

    one = loop(is_needed=is_needed)
    await end(conn, await taken(conn, one), Result(), None)
    following = await column(conn, "next_due_at")

    term = (await look(conn, one)).term  # a restart
    assert term is not None
    await end(conn, term, Result(), None)
    needed = False
    assert (await look(conn, one)).term is None

    assert await column(conn, "next_due_at") == following, "the schedule goes on as it was"
    assert [outcome for *_, outcome in await outcomes(conn)] == ["success", "success"]


async def test_failed_need_check_does_not_prevent_registration(conn: Conn) -> None:
    async def is_needed(_: Conn) -> bool:
        raise RuntimeError("no")

    await ensure(conn, [loop(is_needed=is_needed, first_run="after_interval"), loop(name="other")])

    assert await rows(conn, "SELECT name, retry_at FROM holdfast.loops ORDER BY name") == [("other", None), ("tidy", None)]


async def test_register_keeps_due_time_and_pause(conn: Conn) -> None:
    """S-02: an existing registration is replaced; E-20: a restart is no reason to wait a day more."""
    await ensure(conn, [loop()])
    await conn.execute("UPDATE holdfast.loops SET next_due_at = '2030-01-01', paused_at = clock_timestamp()")
    before = await everything(conn)

    await ensure(conn, [loop()])

    assert await everything(conn) == before


async def test_new_interval_counts_from_now(conn: Conn) -> None:
    await ensure(conn, [loop(every=timedelta(days=1))])
    await conn.execute("UPDATE holdfast.loops SET next_due_at = '2030-01-01'")

    await ensure(conn, [loop(every=MINUTE)])

    assert await value(conn, "SELECT next_due_at - clock_timestamp() FROM holdfast.loops") <= MINUTE


async def test_f_59_ten_concurrent_ticks_run_once(connect: Any, conn: Conn) -> None:
    """S-20: each tick is run once, however many replicas there are."""
    await ensure(conn, [loop()])
    connections = [await connect() for _ in range(10)]

    looked = await together(*(take(one, loop(), f"replica {n}") for n, one in enumerate(connections)))

    assert sum(one.term is not None for one in looked) == 1
    assert await outcomes(conn) == [(1, "schedule", "running")]


async def test_the_next_tick_is_on_the_grid_and_not_an_interval_after_the_end(conn: Conn) -> None:
    await ensure(conn, [loop()])
    await make_due(conn, late=timedelta(seconds=40))
    due = await column(conn, "next_due_at")

    await take(conn, loop(), "here")

    assert await column(conn, "next_due_at") == due + HOUR


async def test_held_loop_is_not_taken_s_11(conn: Conn) -> None:
    """S-11: no overlap, even when the next tick is due."""
    await taken(conn, loop())
    await make_due(conn)

    looked = await look(conn, loop())

    assert looked.term is None
    assert looked.wait > timedelta(0)


async def test_f_14_expired_loop_is_taken_under_a_higher_term(conn: Conn) -> None:
    first = await taken(conn, loop())
    await silence(conn)

    second = await taken(conn, loop(), "there")

    assert (second.number, second.due_at) == (2, first.due_at), "the same tick, begun again"
    assert await outcomes(conn) == [(1, "schedule", "abandoned"), (2, "schedule", "running")]
    assert await column(conn, "failures") == 1


async def test_f_14_replaced_holder_cannot_write(conn: Conn) -> None:
    first = await taken(conn, loop())
    await silence(conn)
    await taken(conn, loop(), "there")
    before = await everything(conn)

    with pytest.raises(TermLost):
        await end(conn, first, Result(3), None)
    with pytest.raises(TermLost):
        await end(conn, first, None, "it failed")
    with pytest.raises(TermLost):
        await give_back(conn, first, "stopped")
    assert not await renew(conn, first, LONG)
    async with conn.transaction():
        with pytest.raises(TermLost):
            await run_async(conn, guard(first))

    assert await everything(conn) == before


async def test_f_14_same_holder_with_an_older_term_cannot_write(conn: Conn) -> None:
    """A process that lost a loop and got it back is not the one it was."""
    first = await taken(conn, loop(), "here")
    await silence(conn)
    await taken(conn, loop(), "here")

    with pytest.raises(TermLost):
        await end(conn, first, Result(), None)
    assert not await renew(conn, first, LONG)


async def test_ended_term_cannot_write(conn: Conn) -> None:
    term = await taken(conn, loop())
    await end(conn, term, Result(), None)

    async with conn.transaction():
        with pytest.raises(TermLost):
            await run_async(conn, guard(term))


async def test_open_write_of_a_term_blocks_a_takeover(connect: Any, conn: Conn) -> None:
    """The lease may be over: whoever writes holds the row until the commit, and whoever takes it comes after."""
    term = await taken(conn, loop())
    await silence(conn)
    other = await connect()

    async with conn.transaction():
        await run_async(conn, guard(term))
        assert (await look(other, loop())).term is None

    assert (await look(other, loop())).term is not None


async def test_write_that_waits_for_a_takeover_is_refused(connect: Any, conn: Conn) -> None:
    term = await taken(conn, loop())
    await silence(conn)
    taker, writer = await connect(), await connect()

    async def write() -> None:
        async with writer.transaction():
            await run_async(writer, guard(term))

    async with taker.transaction():
        await take(taker, loop(), "there")
        task = asyncio.ensure_future(together(write()))
        await waits(conn, writer)
    with pytest.raises(TermLost):
        await task


async def test_renewal_does_not_wait_for_the_own_write(connect: Any, conn: Conn) -> None:
    term = await taken(conn, loop())
    other = await connect()
    await other.execute("SET lock_timeout = '5s'")

    async with conn.transaction():
        await run_async(conn, guard(term))
        assert await renew(other, term, LONG), "it is ours, renewed or not"


async def test_renewal_keeps_the_loop(conn: Conn) -> None:
    term = await taken(conn, loop())
    await silence(conn)

    assert await renew(conn, term, LONG)

    assert (await look(conn, loop())).term is None


async def test_f_60_pass_that_crashes_twice_waits_for_the_next_tick(conn: Conn) -> None:
    await taken(conn, loop())
    await silence(conn)
    await taken(conn, loop(), "there")
    await silence(conn)

    assert (await look(conn, loop())).term is None

    assert [outcome for *_, outcome in await outcomes(conn)] == ["abandoned", "abandoned"]
    assert await column(conn, "holder") is None
    await make_due(conn)
    assert (await look(conn, loop())).term is not None


async def test_released_run_starts_immediately_and_is_no_failure(conn: Conn) -> None:
    first = await taken(conn, loop())

    await give_back(conn, first, "its process was stopped")
    second = await taken(conn, loop(), "there")

    assert second.due_at == first.due_at
    assert await outcomes(conn) == [(1, "schedule", "interrupted"), (2, "schedule", "running")]
    assert await column(conn, "failures") == 0


async def test_f_59_missed_ticks_are_skipped_and_counted(conn: Conn) -> None:
    """S-15: skips are counted; the schedule goes on with its next tick."""
    await ensure(conn, [loop()])
    await make_due(conn, late=timedelta(hours=2, minutes=5))

    looked = await look(conn, loop())

    assert (looked.term, looked.missed) == (None, 3)
    assert timedelta(0) < await value(conn, "SELECT next_due_at - clock_timestamp() FROM holdfast.loops") < HOUR
    assert await outcomes(conn) == []


async def test_f_59_catch_up_runs_the_last_missed_ticks(conn: Conn) -> None:
    one = loop(catch_up=2)
    await ensure(conn, [one])
    await make_due(conn, late=timedelta(hours=3, minutes=5))

    ran = []
    while (term := (await look(conn, one)).term) is not None:
        ran.append(term.due_at)
        await end(conn, term, Result(), None)

    assert len(ran) == 2
    assert ran[1] - ran[0] == HOUR


async def test_end_whose_response_was_lost_is_not_written_twice(conn: Conn) -> None:
    term = await taken(conn, loop())
    await end(conn, term, Result(2), None)

    assert await end(conn, term, Result(2), None, again=True) == 0
    with pytest.raises(TermLost):
        await end(conn, term, None, "failed after all", again=True)


async def test_schema_refuses_a_decreasing_term_and_concurrent_runs(conn: Conn) -> None:
    """The second wall, for those who write SQL themselves."""
    await taken(conn, loop())

    with pytest.raises(psycopg.errors.CheckViolation, match="term"):
        await conn.execute("UPDATE holdfast.loops SET term = 0")
    with pytest.raises(psycopg.errors.CheckViolation, match="term"):
        await conn.execute("UPDATE holdfast.loops SET holder = 'somebody else'")
    with pytest.raises(psycopg.errors.UniqueViolation, match="one_run_at_a_time"):
        await conn.execute(
            "INSERT INTO holdfast.loop_runs (name, trigger, term, outcome) VALUES ('tidy', 'manual', 9, 'running')"
        )
