"""Run a plain function beside the event loop, in a thread of its own. Called by: `execute.py`.

Not the loop's default executor: that one has fewer threads than a worker has lanes, shares them with everybody else in a web
process, and makes the end of the process wait for a handler that does not come back. How many run at once is decided by the
lanes; starting a thread costs less than a tenth of a millisecond.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

from holdfast.telemetry.metrics import gauge

_at_work: dict[threading.Thread, asyncio.Future[Any]] = {}


def at_work() -> int:
    """How many handlers are in threads now, also those that nobody waits for any more."""
    return len(_at_work)


def left_behind() -> int:
    """How many of those nobody waits for any more: beyond their time-out, or of jobs that were stopped."""
    return sum(outcome.cancelled() for outcome in list(_at_work.values()))


gauge("holdfast_handler_threads_left_behind").set_function(left_behind)


def leave_if_forked(ours: int) -> None:
    """End this process if it is not the one that the handler began in. A copy that a handler forked has our claims and our
    connections: if it came back here it would write a second end, in the middle of what we write ourselves."""
    if os.getpid() != ours:
        os._exit(1)


async def in_thread(function: Callable[[], Any]) -> Any:
    """What the function returns or raises. It goes on when the caller is cancelled: a thread cannot be stopped from outside."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context, ours = contextvars.copy_context(), os.getpid()

    def tell(result: Any, error: BaseException | None) -> None:
        if outcome.done():  # nobody waits any more
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # foreign code, and it must not die unheard in a thread
            error = raised
        leave_if_forked(ours)
        _at_work.pop(threading.current_thread(), None)
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, error)

    thread = threading.Thread(target=run, name="holdfast-handler", daemon=True)
    _at_work[thread] = outcome
    thread.start()
    return await outcome
