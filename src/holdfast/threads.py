"""Run a blocking function in a new thread, beside the event loop. Called by: handlers, loops, engines and stores.

asyncio's default executor is not used: it has fewer threads than a worker has lanes, is shared with everything else in a web
process, and the process cannot end before each of its threads has ended. Here a blocked function delays neither other work nor
the end of the process. How many threads run at once is limited by the callers; starting one takes less than 0.1 ms.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from holdfast.telemetry.metrics import gauge

P = ParamSpec("P")
R = TypeVar("R")

_running: dict[threading.Thread, asyncio.Future[Any]] = {}


def at_work() -> int:
    """How many functions run in threads now, including abandoned ones."""
    return len(_running)


def left_behind() -> int:
    """How many of them are abandoned: their caller was cancelled or timed out."""
    return sum(outcome.cancelled() for outcome in list(_running.values()))


gauge("holdfast_handler_threads_left_behind").set_function(left_behind)


_forks = 0  # counted in the copy: 0 in a process that Python has not forked since this module was imported


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def forks() -> int:
    """For `leave_if_forked`. The process id would do, but to ask for it is a system call, and every job needs this twice."""
    return _forks


def leave_if_forked(before: int) -> None:
    """End this process if it is a copy that was forked after `forks()` returned `before`: a handler has done so.

    The copy has our claims and connections. If it continued, it would write a second outcome into the same connections.
    """
    if _forks != before:
        os._exit(1)


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The function's result or exception.

    If the caller is cancelled, the thread continues: it cannot be stopped from outside.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[R] = loop.create_future()
    context, before = contextvars.copy_context(), _forks

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():  # the caller was cancelled
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def run() -> None:
        result: R | None = None
        failure: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except StopIteration as error:  # a future cannot carry it
            failure = RuntimeError(f"a function in a thread raised {error!r}")
            failure.__cause__ = error
        except BaseException as error:  # foreign code; the caller decides
            failure = error
        leave_if_forked(before)
        _running.pop(threading.current_thread(), None)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    thread = threading.Thread(target=run, name=f"holdfast-{getattr(function, '__name__', 'thread')}", daemon=True)
    _running[thread] = outcome
    thread.start()
    return await outcome
