"""One tick of a loop, top to bottom: take its row, run the pass while the lease is kept, end it. Called by: the clock.

This is the one place where whatever a pass raises is caught: a failing pass never stops the process, and the next tick tries
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.database.pool import Link
from holdfast.errors import TermLost
from holdfast.jobs.payload import storable
from holdfast.schedule.context import Held, Pass, SyncPass
from holdfast.schedule.registry import Loop, Result
from holdfast.schedule.term import LOOK_AGAIN, Term, end, give_back, renew, take
from holdfast.schedule.threads import in_thread
from holdfast.telemetry import metrics
from holdfast.telemetry.log import log

LOST_DATABASE = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, TimeoutError, OSError)
LOGGED_EVERY = 300.0  # seconds: at least so often a quiet loop says at INFO that it runs
TRIES = 6  # to write an end that the database did not take


class QuietPasses:
    """Passes of quiet loops that were not logged at INFO. The first pass in a process is, and then one in five minutes at
    least: so that a log without debugging tells a loop that has nothing to do from one that does not run."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        self._passes: Counter[str] = Counter()

    def is_due(self, loop: str) -> bool:
        """Whether this pass is to be logged, whatever it does."""
        logged_at = self._logged_at.get(loop)
        return logged_at is None or time.monotonic() - logged_at >= LOGGED_EVERY

    def count(self, loop: str, *, aloud: bool) -> int:
        """Count a pass that has ended; how many there were since the last one that was logged, with this one."""
        self._passes[loop] += 1
        if not aloud:
            return self._passes[loop]
        self._logged_at[loop] = time.monotonic()
        return self._passes.pop(loop)


@dataclass(slots=True)
class Place:
    """Where ticks run: a process and its connections."""

    url: str
    holder: str
    rows: Link  # for taking, keeping and ending: short statements
    pool: AsyncConnectionPool[Any]  # for the passes
    quiet: QuietPasses = field(default_factory=QuietPasses)


async def tick(loop: Loop, place: Place) -> timedelta:
    """Run the loop if it is due and nobody else does; how long there is nothing to do for it after that."""
    try:
        async with place.rows as conn:
            term, wait, missed = await take(conn, loop, place.holder)
    except LOST_DATABASE as error:
        log.warning("scheduler_database_lost", job=loop.name, error=str(error))
        return LOOK_AGAIN
    if missed:
        log.warning("loop_ticks_missed", job=loop.name, missed=missed)
        metrics.loop_missed.labels(loop.name).inc(missed)
    if term is None:
        return wait
    try:
        await _run(loop, term, place)
    except TermLost:
        log.warning("loop_term_lost", job=loop.name, term=term.number)
        metrics.loop_refused.labels(loop.name).inc()
    return timedelta(0)  # look at once: the next tick may be due


async def _run(loop: Loop, term: Term, place: Place) -> None:
    aloud = _started(loop, term, place)
    began = time.perf_counter()
    result, failure = Result(), None
    try:
        result = await _pass(loop, term, place)
    except TermLost:
        raise
    except asyncio.CancelledError:
        await _give_back(term, place)
        raise
    except Exception as error:  # foreign code: the pass has failed, and the process goes on
        failure = error
    seconds = time.perf_counter() - began
    await _end(loop, term, place, result, failure)
    _ended(loop, place, result, failure, seconds, aloud=aloud)


# ---------------------------------------------------------------------------------------------------------------------
# The pass
# ---------------------------------------------------------------------------------------------------------------------


async def _pass(loop: Loop, term: Term, place: Place) -> Result:
    """Call the function. When the term is lost meanwhile, an asynchronous one is cancelled; a thread finds out as it writes."""
    held = Held(loop.lease)
    async with _kept(loop, term, place, held) as lost:
        work = asyncio.ensure_future(_call(loop, term, place, held))
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                held.is_lost = True
                work.cancel()
                await asyncio.wait({work}, timeout=loop.lease.total_seconds())
        if work.cancelled() or not work.done():
            raise TermLost(term.loop, term.number)
        return _as_result(work.result())


async def _call(loop: Loop, term: Term, place: Place, held: Held) -> object:
    function = cast("Callable[[Any], Any]", loop.function)
    if loop.is_async:
        return await function(Pass(term, held, place.pool.connection, place.url))
    return await in_thread(function, SyncPass(term, held, place.url))


def _as_result(returned: object) -> Result:
    if isinstance(returned, Result):
        return returned
    return Result(items=returned) if isinstance(returned, int) else Result()


@contextlib.asynccontextmanager
async def _kept(loop: Loop, term: Term, place: Place, held: Held) -> AsyncIterator[asyncio.Task[None]]:
    """Renew the lease beside the block; the task ends when the term is lost."""
    keeping = asyncio.create_task(_keep(loop, term, place, held))
    try:
        yield keeping
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _keep(loop: Loop, term: Term, place: Place, held: Held) -> None:
    while not held.is_over:
        await asyncio.sleep(loop.lease.total_seconds() / 4)
        asked_at = time.monotonic()  # before the question: an answer that took long must not stretch the lease
        try:
            async with place.rows as conn:
                held.is_lost = not await renew(conn, term, loop.lease)
        except LOST_DATABASE as error:
            log.warning("loop_renewal_failed", job=loop.name, term=term.number, error=str(error))
        else:
            held.renewed(asked_at)
    held.is_lost = True


# ---------------------------------------------------------------------------------------------------------------------
# The end
# ---------------------------------------------------------------------------------------------------------------------


async def _end(loop: Loop, term: Term, place: Place, result: Result, failure: Exception | None) -> None:
    """Write the end, again if the database is away for a moment. In vain: the lease runs out and somebody begins again."""
    error = None if failure is None else storable(f"{type(failure).__name__}: {failure}", 2000)
    for attempt in range(TRIES):
        try:
            async with place.rows as conn:
                await end(conn, term, result, error, retry_after=loop.retry_after, again=attempt > 0)
            return
        except LOST_DATABASE as lost:
            log.warning("scheduler_database_lost", job=term.loop, error=str(lost))
            await asyncio.sleep(0.1 * 2**attempt)
    raise TermLost(term.loop, term.number)


async def _give_back(term: Term, place: Place) -> None:
    with contextlib.suppress(TermLost, *LOST_DATABASE):
        async with place.rows as conn:
            await give_back(conn, term, "its process was stopped")
        log.info("loop_given_back", job=term.loop, term=term.number)


def _started(loop: Loop, term: Term, place: Place) -> bool:
    """Log that a pass begins; whether it is logged for everybody, or as a quiet loop's for debugging."""
    aloud = not loop.is_quiet or place.quiet.is_due(loop.name)
    say: Callable[..., None] = log.info if aloud else log.debug
    say("job_started", job=loop.name, term=term.number, trigger=term.trigger, due_at=str(term.due_at))
    say(f"{loop.name}_job_started", term=term.number)
    if term.due_at is not None:
        metrics.loop_late.labels(loop.name).set(term.late.total_seconds())
    return aloud


def _ended(loop: Loop, place: Place, result: Result, failure: Exception | None, seconds: float, *, aloud: bool) -> None:
    metrics.executions.labels(loop.name, "success" if failure is None else "failed").inc()
    metrics.execution_seconds.labels(loop.name).observe(seconds)
    counts = {"done": result.items, "failed": result.failed, "skipped": result.skipped}
    for outcome, count in counts.items():
        metrics.loop_items.labels(loop.name, outcome).inc(count)
    aloud = aloud or any(counts.values())
    passes = place.quiet.count(loop.name, aloud=aloud) if loop.is_quiet else 1
    took = {"duration_seconds": round(seconds, 3)}
    if failure is not None:
        log.error("job_failed", job=loop.name, error=str(failure), exc_info=failure, **took)
        return
    say: Callable[..., None] = log.info if aloud else log.debug
    told = took | {"passes": passes} if loop.is_quiet else took
    say("job_completed", job=loop.name, **counts, **told)
    say(f"{loop.name}_job_completed", **(result.fields or counts), **told)
