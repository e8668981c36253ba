"""Wait for something to end, and show how far it is. Ctrl-C leaves it running."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.client.showing import Showing

T = TypeVar("T")

FIRST_LOOK, LONGEST_PAUSE = 0.1, 2.0  # seconds: soon after the start, seldom for what takes long


def wait(
    look: Callable[[], T],
    ended: Callable[[T], bool],
    *,
    timeout: float | None,
    showing: Showing[T],
    says: Callable[[T], str],
    on_progress: Callable[[T], None] | None = None,
) -> T:
    """Look again and again until it has ended; `TimeoutError` when that takes too long. It goes on either way."""
    deadline, pause = None if timeout is None else time.monotonic() + timeout, FIRST_LOOK
    with showing:
        while True:
            found = look()
            showing.show(found)
            if on_progress is not None:
                on_progress(found)
            if ended(found):
                return found
            if deadline is not None and time.monotonic() + pause > deadline:
                raise TimeoutError(f"{says(found)} after {timeout:g} s; it goes on without us")
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
