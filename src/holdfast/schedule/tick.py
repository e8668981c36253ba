"""One tick of a loop, top to bottom: take its row, run the pass and renew the lease meanwhile, write the end.

Called by: the scheduler. Only this module catches the exceptions of a pass: a failing pass never stops the process, and the
next tick tries again. Each pass logs `<loop>_job_started`, then `<loop>_job_completed` or `<loop>_job_failed`.
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
from holdfast.schedule.term import POLL_AGAIN, Term, end, give_back, renew, take
from holdfast.telemetry import metrics
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

LOST_DATABASE = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, TimeoutError, OSError)
LOGGED_EVERY = 300.0  # seconds: a quiet loop logs a pass at INFO at least this often
WRITE_ATTEMPTS = 6  # to write the end of a pass while the database is unreachable


class QuietPasses:
    """Counts the passes of quiet loops that were not logged at INFO.

    The first pass in a process is logged at INFO, and then at least one in five minutes: so the log tells a loop that has
    nothing to do from one that does not run.
    """

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        self._passes: Counter[str] = Counter()

    def is_due(self, loop: str) -> bool:
        """Whether this pass is logged at INFO even if it does nothing."""
        logged_at = self._logged_at.get(loop)
        return logged_at is None or time.monotonic() - logged_at >= LOGGED_EVERY

    def count(self, loop: str, *, at_info: bool) -> int:
        """Count a pass that has ended. Returns the number of passes since the last one at INFO, including this one."""
        self._passes[loop] += 1
        if not at_info:
            return self._passes[loop]
        self._logged_at[loop] = time.monotonic()
        return self._passes.pop(loop)


@dataclass(slots=True)
class Place:
    """The process in which ticks run, and its connections."""

    url: str
    holder: str
    rows: Link  # to take, renew and end terms: short statements
    pool: AsyncConnectionPool[Any]  # for the functions of the loops
    quiet: QuietPasses = field(default_factory=QuietPasses)


async def tick(loop: Loop, place: Place) -> timedelta:
    """Run the loop if it is due and no other process runs it. Returns the time until it may be due again."""
    try:
        async with place.rows as conn:
            term, wait, missed = await take(conn, loop, place.holder)
    except LOST_DATABASE as error:
        log.warning("scheduler_database_lost", loop=loop.name, error=str(error))
        return POLL_AGAIN
    if missed:
        log.warning("loop_ticks_missed", loop=loop.name, missed=missed)
        metrics.loop_missed.labels(loop.name).inc(missed)
    if term is None:
        return wait
    try:
        await _run(loop, term, place)
    except TermLost:
        log.warning("loop_term_lost", loop=loop.name, term=term.number)
        metrics.loop_refused.labels(loop.name).inc()
    return timedelta(0)  # check again at once: the next tick may be due


async def _run(loop: Loop, term: Term, place: Place) -> None:
    at_info = _log_started(loop, term, place)
    began = time.perf_counter()
    result, failure = Result(), None
    try:
        result = await _pass(loop, term, place)
    except TermLost:
        raise
    except asyncio.CancelledError:
        await _give_back(term, place)
        raise
    except Exception as error:  # the loop's function: the pass has failed, and the process continues
        failure = error
    seconds = time.perf_counter() - began
    await _write_end(loop, term, place, result, failure)
    _count(loop, result, failure, seconds)
    _log_ended(loop, place, result, failure, seconds, at_info=at_info)


# ---------------------------------------------------------------------------------------------------------------------
# The pass
# ---------------------------------------------------------------------------------------------------------------------


async def _pass(loop: Loop, term: Term, place: Place) -> Result:
    """Call the loop's function. If the term is lost meanwhile, a coroutine is cancelled; a thread is refused when it writes."""
    held = Held(loop.lease)
    async with _renewing(loop, term, place, held) as lost:
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
async def _renewing(loop: Loop, term: Term, place: Place, held: Held) -> AsyncIterator[asyncio.Task[None]]:
    """Renew the lease while the block runs. The task ends when the term is lost."""
    renewing = asyncio.create_task(_renew_lease(loop, term, place, held))
    try:
        yield renewing
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def _renew_lease(loop: Loop, term: Term, place: Place, held: Held) -> None:
    while not held.is_over:
        await asyncio.sleep(loop.lease.total_seconds() / 4)
        asked_at = time.monotonic()  # before the query: a slow answer must not extend the lease
        try:
            async with place.rows as conn:
                held.is_lost = not await renew(conn, term, loop.lease)
        except LOST_DATABASE as error:
            log.warning("loop_renewal_failed", loop=loop.name, term=term.number, error=str(error))
        else:
            held.renewed(asked_at)
    held.is_lost = True


# ---------------------------------------------------------------------------------------------------------------------
# The end
# ---------------------------------------------------------------------------------------------------------------------


async def _write_end(loop: Loop, term: Term, place: Place, result: Result, failure: Exception | None) -> None:
    """Write the end of a pass, and retry while the database is unreachable. If that fails, the lease expires and another
    process runs the tick again."""
    error = None if failure is None else storable(f"{type(failure).__name__}: {failure}", 2000)
    for attempt in range(WRITE_ATTEMPTS):
        try:
            async with place.rows as conn:
                await end(conn, term, result, error, retry_after=loop.retry_after, again=attempt > 0)
            return
        except LOST_DATABASE as lost:
            log.warning("scheduler_database_lost", loop=term.loop, error=str(lost))
            await asyncio.sleep(0.1 * 2**attempt)
    raise TermLost(term.loop, term.number)


async def _give_back(term: Term, place: Place) -> None:
    with contextlib.suppress(TermLost, *LOST_DATABASE):
        async with place.rows as conn:
            await give_back(conn, term, "its process was stopped")
        log.info("loop_given_back", loop=term.loop, term=term.number)


def _log_started(loop: Loop, term: Term, place: Place) -> bool:
    """Log that a pass begins. Returns whether it is logged at INFO, or at DEBUG because the loop is quiet."""
    at_info = not loop.is_quiet or place.quiet.is_due(loop.name)
    began = {"term": term.number, "trigger": term.trigger, "due_at": str(term.due_at)}
    _log_at(at_info)(f"{loop.name}_job_started", loop=loop.name, **began)
    if term.due_at is not None:
        metrics.loop_late.labels(loop.name).set(term.late.total_seconds())
    return at_info


def _count(loop: Loop, result: Result, failure: Exception | None, seconds: float) -> None:
    metrics.executions.labels(loop.name, "success" if failure is None else "failed").inc()
    metrics.execution_seconds.labels(loop.name).observe(seconds)
    for outcome, count in _counts(result).items():
        metrics.loop_items.labels(loop.name, outcome).inc(count)


def _log_ended(loop: Loop, place: Place, result: Result, failure: Exception | None, seconds: float, *, at_info: bool) -> None:
    at_info = at_info or any(_counts(result).values())
    passes = place.quiet.count(loop.name, at_info=at_info) if loop.is_quiet else 1
    took = {"duration_seconds": round(seconds, 3)}
    if failure is not None:
        log.error(f"{loop.name}_job_failed", loop=loop.name, error=str(failure), exc_info=failure, **took)
        return
    told = _counts(result) | result.fields | took | ({"passes": passes} if loop.is_quiet else {}) | {"loop": loop.name}
    _log_at(at_info)(f"{loop.name}_job_completed", **told)


def _log_at(at_info: bool) -> Callable[..., None]:
    write: Callable[..., None] = log.info if at_info else log.debug
    return write


def _counts(result: Result) -> dict[str, int]:
    return {"done": result.items, "failed": result.failed, "skipped": result.skipped}
