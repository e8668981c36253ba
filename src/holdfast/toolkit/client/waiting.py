"""Poll until something has ended, and show its progress. Ctrl-C leaves it running."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.toolkit.client.progress import ProgressDisplay

T = TypeVar("T")

FIRST_POLL, LONGEST_PAUSE = 0.1, 2.0  # seconds


def wait(
    fetch: Callable[[], T],
    is_ended: Callable[[T], bool],
    *,
    timeout: float | None,
    display: ProgressDisplay[T],
    describe: Callable[[T], str],
    on_progress: Callable[[T], None] | None = None,
) -> T:
    """Poll until it has ended; `TimeoutError` if that takes too long. It continues in either case."""
    deadline, pause = None if timeout is None else time.monotonic() + timeout, FIRST_POLL
    with display:
        while True:
            found = fetch()
            display.show(found)
            if on_progress is not None:
                on_progress(found)
            if is_ended(found):
                return found
            if deadline is not None and time.monotonic() + pause > deadline:
                raise TimeoutError(f"{describe(found)} after {timeout:g} s; it continues")
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
