"""Run a plain function beside the event loop, in a thread of its own. Called by: `execute.py`.

Not the loop's default executor: that one has fewer threads than a worker has lanes, shares them with everybody else in a web
process, and makes the end of the process wait for a handler that does not come back. How many run at once is decided by the
lanes; starting a thread costs less than a tenth of a millisecond.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

_at_work: set[threading.Thread] = set()


def at_work() -> int:
    """How many handlers are in threads now, also those that nobody waits for any more."""
    return len(_at_work)


async def in_thread(function: Callable[[], Any]) -> Any:
    """What the function returns or raises. It goes on when the caller is cancelled: a thread cannot be stopped from outside."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

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
        _at_work.discard(threading.current_thread())
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, error)

    thread = threading.Thread(target=run, name="holdfast-handler", daemon=True)
    _at_work.add(thread)
    thread.start()
    return await outcome
