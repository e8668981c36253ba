"""Short words for the tests of periodic loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from factories import Conn, rows, value
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop
from holdfast.schedule.term import Taken, ensure, take

HOUR = timedelta(hours=1)
LONG = timedelta(minutes=10)


async def nothing(ctx: Pass) -> None:
    """A pass that does nothing."""


def loop(function: Callable[..., Any] = nothing, name: str = "tidy", **fields: Any) -> Loop:
    """A loop that is due at once, and then every hour."""
    return Loop(name, function, **{"every": HOUR, "first_run": "at_once", **fields})


async def taken(conn: Conn, one: Loop, holder: str = "here") -> Any:
    """Take the loop's row, which must work."""
    await ensure(conn, [one])
    term = (await take(conn, one, holder)).term
    assert term is not None, "it could not be taken"
    return term


async def look(conn: Conn, one: Loop, holder: str = "there") -> Taken:
    await ensure(conn, [one])
    return await take(conn, one, holder)


async def silence(conn: Conn, name: str = "tidy", *, ago: timedelta = timedelta(seconds=1)) -> None:
    """The holder went silent: its lease is over."""
    await conn.execute("UPDATE holdfast.loops SET held_until = clock_timestamp() - %s WHERE name = %s", [ago, name])


async def make_due(conn: Conn, name: str = "tidy", *, late: timedelta = timedelta(seconds=0)) -> None:
    """The next tick is due, or was a while ago."""
    await conn.execute("UPDATE holdfast.loops SET next_due_at = clock_timestamp() - %s WHERE name = %s", [late, name])


async def column(conn: Conn, column: str, name: str = "tidy") -> Any:
    return await value(conn, f"SELECT {column} FROM holdfast.loops WHERE name = %s", name)


async def outcomes(conn: Conn, name: str = "tidy") -> list[tuple[Any, ...]]:
    """Term, trigger and outcome of each run, oldest first."""
    return await rows(conn, "SELECT term, trigger, outcome FROM holdfast.loop_runs WHERE name = %s ORDER BY id", name)


async def witness(conn: Conn) -> list[tuple[Any, ...]]:
    """What loops have written, by whom."""
    return await rows(conn, "SELECT loop, key, who FROM public.witness ORDER BY id")


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for something that will come."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
