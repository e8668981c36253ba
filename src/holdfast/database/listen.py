"""Hear that something was enqueued: a hint, never a promise. Called by: the worker's loop.

Whatever happens to this connection, nothing is lost: the worker looks by itself every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from holdfast.database.pool import connect
from holdfast.telemetry.log import log

CHANNEL = "holdfast"


async def listen(url: str, wake: Callable[[str], None], *, again_after: float = 1.0) -> None:
    """Call `wake` for every hint, and once after every reconnect, for what was missed meanwhile. Runs until cancelled."""
    while True:
        try:
            conn = await connect(url)
            try:
                await conn.execute(f"LISTEN {CHANNEL}")
                wake("")
                async for hint in conn.notifies():
                    wake(hint.payload)
            finally:
                await conn.close()
        except psycopg.Error as error:
            log.warning("listen_lost", error=str(error))
            await asyncio.sleep(again_after)
