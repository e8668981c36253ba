"""Cancel tasks and wait for their end. Called by: the worker, at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def cancel_all(tasks: Collection[asyncio.Task[Any]], *, within: float) -> int:
    """Cancel them and wait, but not forever: a handler that ignores the cancellation must not prevent the exit of the
    program. How many are left behind."""
    for task in tasks:
        task.cancel()
    _, left = await asyncio.wait(tasks, timeout=within)
    return len(left)
