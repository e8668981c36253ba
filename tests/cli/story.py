"""A database in which something of everything has happened, for the commands to look at."""

from __future__ import annotations

from typing import NamedTuple

from factories import Conn, add, end, hold, silence, start_worker
from holdfast.jobs import control
from holdfast.jobs.logs import Numbered, write
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.pipelines import Pipeline
from holdfast.telemetry.kept import Line


class Story(NamedTuple):
    """Whom the tests speak of."""

    pending: int
    running: int
    failed: int
    completed: int
    stale: int
    lock_holder: int
    lock_waiter: int
    pipeline: str


async def tell(conn: Conn) -> Story:
    """Make it so."""
    pending = await add(conn, "export", payload={"table": "orders"})
    alive = await start_worker(conn, "pod-a")
    running = await hold(conn, "export", payload={"table": "lines"}, worker=alive)
    failed = await hold(conn, "recalc", payload={"month": 5}, max_attempts=1, worker=alive)
    await write(conn, [Numbered(failed, 1, Line("2026-01-01T00:00:00+00:00", "warning", "month is empty", {"month": 5}))])
    await end(conn, failed, ValueError("no rows for month 5"))
    completed = await hold(conn, "ingest", worker=alive)
    await end(conn, completed)
    stale = await hold(conn, "ingest")
    await silence(conn, stale)
    holder = await hold(conn, "compact", locks=[Lock("table:orders")], worker=alive)
    waiter = await add(conn, "compact", locks=[Lock("table:orders")])
    pipeline = await _pipeline(conn)
    await control.pause(conn, "recalc", actor="ada", reason="the source is down")
    return Story(pending, running.id, failed.id, completed.id, stale.id, holder.id, waiter, pipeline)


async def _pipeline(conn: Conn) -> str:
    nightly = Pipeline("nightly")
    first = nightly.add(NewJob("load"))
    nightly.add(NewJob("report"), after=first)
    await nightly.enqueue(conn)
    return nightly.id
