"""Call a plain function in a thread of its own. Called by: ticks and reconcilers.

Not in asyncio's pool: that one is small and shared, and a process cannot end before every thread of it has. A pass that
hangs in a system call must keep neither other loops from running nor its process from stopping: its thread dies with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Wait for the function without blocking the event loop. Cancelled, the wait ends; the thread goes on by itself."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: R | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # it is an R: there was no error

    def run() -> None:
        result: R | None = None
        failure: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except StopIteration as error:  # a future cannot carry it
            failure = RuntimeError("a function in a thread raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:  # whatever it is, it is for the one who waits
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=f"holdfast-{getattr(function, '__name__', 'loop')}", daemon=True).start()
    return await answer
