"""Reconcilers of users: due keys, each with a try and a transaction of its own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from factories import Conn, rows, value
from holdfast import Pass, SyncPass, reconciler
from holdfast.errors import UsageError
from holdfast.schedule import registry
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from loop_factories import HOUR, make_due, silence, witness

INSERT = "INSERT INTO public.witness (loop, key, who) VALUES (%s, %s, %s)"


@pytest.fixture(autouse=True)
def own_loops() -> Iterator[None]:
    """The loops of a test are forgotten after it."""
    before = dict(registry._loops)
    yield
    registry._loops.clear()
    registry._loops.update(before)


async def run(conn: Conn, place: Place, name: str = "tidy") -> tuple[Any, ...]:
    """One pass: its outcome, and how many keys were done, failed and skipped."""
    one = registry.registered()[name]
    await ensure(conn, [one])
    await make_due(conn, name)
    await tick(one, place)
    found = await rows(
        conn, "SELECT outcome, items, failed_items, skipped_items FROM holdfast.loop_runs WHERE name = %s ORDER BY id", name
    )
    return found[-1]


async def test_every_due_key_is_acted_on(conn: Conn, place: Place) -> None:
    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> list[int]:
        """Rows that are due."""
        return [1, 2, 3]

    @due.act
    async def act(ctx: Pass, key: int) -> None:
        async with ctx.transaction() as own:
            await own.execute(INSERT, [ctx.name, key, "act"])

    assert await run(conn, place) == ("success", 3, 0, 0)
    assert await witness(conn) == [("tidy", key, "act") for key in "123"]
    assert registry.registered()["tidy"].description == "Rows that are due."


async def test_failing_key_does_not_stop_others(conn: Conn, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """S-16: 8 of 10 done, 2 failed and logged, and the pass is a success; what the failed ones wrote is undone."""

    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> list[int]:
        return list(range(10))

    @due.act
    async def act(ctx: Pass, key: int) -> None:
        async with ctx.transaction() as own:
            await own.execute(INSERT, [ctx.name, key, "act"])
            if key in (3, 7):
                raise RuntimeError(f"no {key}")

    assert await run(conn, place) == ("success", 8, 2, 0)
    assert [int(key) for _, key, _ in await witness(conn)] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert await rows(conn, "SELECT key, failures, error FROM holdfast.loop_keys ORDER BY key") == [
        ("3", 1, "RuntimeError: no 3"),
        ("7", 1, "RuntimeError: no 7"),
    ]
    logged = [record for record in caplog.records if "reconcile_key_failed" in record.getMessage()]
    assert [record.levelname for record in logged] == ["WARNING", "WARNING"]
    for record, key in zip(logged, "37", strict=True):
        assert f"key='{key}'" in record.getMessage()
        assert record.getMessage().endswith(f"\nRuntimeError: no {key}"), "with its stack"


async def test_failed_statement_aborts_only_its_own_transaction(conn: Conn, place: Place) -> None:
    """E-23: one transaction a key, not one a pass."""

    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> list[str]:
        return ["a", "b", "c"]

    @due.act
    async def act(ctx: Pass, key: str) -> None:
        async with ctx.transaction() as own:
            await own.execute(INSERT, [ctx.name, key, "act"])
            if key == "b":
                await own.execute("SELECT 1/0")

    assert await run(conn, place) == ("success", 2, 1, 0)
    assert [key for _, key, _ in await witness(conn)] == ["a", "c"]


async def test_failed_key_is_retried_with_backoff(conn: Conn, place: Place) -> None:
    """S-14: what a pass knows of a failed key is in the database."""
    tried: list[str] = []
    well = False

    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> list[str]:
        return ["k"]

    @due.act
    async def act(ctx: Pass, key: str) -> None:
        tried.append(key)
        if not well:
            raise RuntimeError("no")

    waits = []
    for _ in range(3):
        assert await run(conn, place) == ("success", 0, 1, 0)
        waits.append(await value(conn, "SELECT retry_at - clock_timestamp() FROM holdfast.loop_keys"))
        assert await run(conn, place) == ("success", 0, 0, 1), "too early: skipped, and counted as such"
        await conn.execute("UPDATE holdfast.loop_keys SET retry_at = clock_timestamp()")
    assert waits[0] < timedelta(seconds=10) < waits[2] < timedelta(seconds=40)

    well = True
    assert await run(conn, place) == ("success", 1, 0, 0)
    assert await rows(conn, "SELECT * FROM holdfast.loop_keys") == [], "a key that is well is forgotten"
    assert len(tried) == 4


async def test_keys_are_read_in_pages_of_100(conn: Conn, place: Place) -> None:
    """S-12: bounded memory. The next page is asked for when the last one is done."""
    asked = done = 0
    most_ahead = 0

    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> AsyncIterator[int]:
        nonlocal asked, most_ahead
        for key in range(250):
            asked += 1
            most_ahead = max(most_ahead, asked - done)
            yield key

    @due.act
    async def act(ctx: Pass, key: int) -> None:
        nonlocal done
        done += 1

    assert await run(conn, place) == ("success", 250, 0, 0)
    assert most_ahead == 100


async def test_sync_functions_run_in_threads(conn: Conn, place: Place) -> None:
    """S-10"""
    threads: set[str] = set()

    @reconciler("tidy", every=HOUR)
    def due(ctx: SyncPass) -> Iterator[str]:
        threads.add(threading.current_thread().name)
        yield from ["a", "b"]

    @due.act
    def act(ctx: SyncPass, key: str) -> None:
        threads.add(threading.current_thread().name)
        with ctx.transaction() as own:
            own.execute(INSERT, [ctx.name, key, "thread"])

    assert await run(conn, place) == ("success", 2, 0, 0)
    assert [key for _, key, _ in await witness(conn)] == ["a", "b"]
    assert "MainThread" not in threads


async def test_failed_find_fails_the_pass_without_acting(conn: Conn, place: Place) -> None:
    """S-15: unknown is not empty: nothing is done, nothing is forgotten, and the next tick looks again."""

    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> list[str]:
        raise ConnectionError("the cluster does not answer")

    @due.act
    async def act(ctx: Pass, key: str) -> None:
        raise AssertionError("called")

    assert await run(conn, place) == ("failed", 0, 0, 0)


async def test_f_14_replaced_reconciler_stops_at_its_next_key(conn: Conn, place: Place, places: Any) -> None:
    there = await places("there")
    acted: list[str] = []

    @reconciler("tidy", every=HOUR, lease=timedelta(hours=1))
    async def due(ctx: Pass) -> list[str]:
        return ["a", "b", "c"]

    @due.act
    async def act(ctx: Pass, key: str) -> None:
        acted.append(f"{key} under {ctx.term}")
        if (key, ctx.term) == ("b", 1):
            await silence(conn)
            await tick(registry.registered()["tidy"], there)
        async with ctx.transaction() as own:
            await own.execute(INSERT, [ctx.name, key, f"term {ctx.term}"])

    await run(conn, place)

    assert acted == ["a under 1", "b under 1", "a under 2", "b under 2", "c under 2"]
    assert [(key, who) for _, key, who in await witness(conn)] == [
        ("a", "term 1"), ("a", "term 2"), ("b", "term 2"), ("c", "term 2"),
    ]  # fmt: skip


async def test_reconciler_without_act_is_reported(conn: Conn, place: Place) -> None:
    @reconciler("tidy", every=HOUR)
    async def due(ctx: Pass) -> list[str]:
        return []

    assert (await run(conn, place))[0] == "failed"
    assert "@due.act" in await value(conn, "SELECT last_error FROM holdfast.loops")


async def test_decorated_function_stays_callable() -> None:
    @reconciler("tidy", every=HOUR)
    async def due(ctx: Any) -> list[str]:
        return [ctx]

    assert await due("x") == ["x"]


def test_invalid_declaration_is_refused_at_decoration() -> None:
    with pytest.raises(UsageError, match="either every"):
        reconciler("tidy")(lambda ctx: [""])
    with pytest.raises(UsageError, match="either every"):
        reconciler("tidy", every=HOUR, cron="* * * * *")(lambda ctx: [""])
    with pytest.raises(UsageError, match="lower-case letters"):
        reconciler("Tidy Up", every=HOUR)(lambda ctx: [""])
    with pytest.raises(UsageError, match="too short"):
        reconciler("tidy", every=timedelta(0))(lambda ctx: [""])
    with pytest.raises(UsageError, match="one key"):
        reconciler("tidy", every=HOUR)(lambda ctx: [""]).act(lambda ctx: None)


def test_loop_names_are_unique_across_modules() -> None:
    one = holdfast.reconciler("tidy", every=HOUR)

    def first(ctx: Any) -> list[str]:
        return []

    def second(ctx: Any) -> list[str]:
        return []

    second.__module__ = "another.module"
    one(first)
    one(first)
    with pytest.raises(UsageError, match="registered already"):
        one(second)
