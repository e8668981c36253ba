"""Tasks that are told to end. Called by: the worker, when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def cancel_all(tasks: Collection[asyncio.Task[Any]], *, within: float) -> int:
    """Cancel them and wait, but not for ever: a handler that does not let itself be cancelled must not keep the program from
    its end. How many are left behind."""
    for task in tasks:
        task.cancel()
    _, left = await asyncio.wait(tasks, timeout=within)
    return len(left)
