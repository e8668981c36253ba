"""Act on many items in a pass, each in its own transaction. Called by: the loops.

An error of one item is logged and counted, and does not affect the others: the pass is a success.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import psycopg

from holdfast.errors import TermLost
from holdfast.schedule.context import Pass
from holdfast.telemetry.log import log

T = TypeVar("T")
Conn = psycopg.AsyncConnection[Any]


class Acted(NamedTuple):
    """How many items were handled, and those that raised."""

    done: int
    failed: list[Any]


async def act_on_each(
    ctx: Pass, items: Iterable[T], act: Callable[[psycopg.AsyncConnection[Any], T], Awaitable[object]]
) -> Acted:
    """Call `act` for each item in a transaction of this term. Raises only if the term or the database is lost."""
    done, failed = 0, []
    for item in items:
        conn: Conn | None = None
        try:
            async with ctx.transaction() as conn:
                await act(conn, item)
            done += 1
        except TermLost:
            raise
        except Exception as error:
            if conn is None or conn.broken or conn.closed:
                raise
            failed.append(item)
            log_failed(ctx, str(getattr(item, "id", item)), error)
    return Acted(done, failed)


def log_failed(ctx: Pass, item: str, error: Exception) -> None:
    """Log that one item of a pass failed."""
    log.error("loop_item_failed", loop=ctx.name, item=item, error=f"{type(error).__name__}: {error}", exc_info=error)
