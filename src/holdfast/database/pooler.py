"""Refuse a pooler in transaction mode. Called by: `revision.py`, `holdfast doctor`.

PgBouncer with `pool_mode = transaction`, and similar poolers, lose everything that belongs to a session: LISTEN, settings,
advisory locks, prepared statements. A worker behind one runs handlers but cannot write their outcomes. Session mode works.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
from psycopg.rows import scalar_row

from holdfast.database.pool import careful, place_of
from holdfast.errors import TransactionPooler

READ_BACKEND = "SELECT pg_backend_pid()"
OTHERS = 3  # connections that keep a backend busy; an idle pooler would assign the same backend again
LONGEST_WAIT = 10.0  # seconds to open them: a pooler in session mode may have no more backends


def require_own_session(url: str) -> None:
    """Raise `TransactionPooler` if two transactions of one connection can run in two backends."""
    with psycopg.connect(careful(url), autocommit=True, row_factory=scalar_row) as conn:
        backends = {conn.execute(READ_BACKEND).fetchone() for _ in range(2)}
        told = conn.info.backend_pid
    # A pooler reports an invented pid to its client.
    if backends != {told} and (len(backends) > 1 or asyncio.run(_changes_backends(careful(url)))):
        raise TransactionPooler(place_of(url))


async def _changes_backends(url: str) -> bool:
    """Whether a connection gets another backend while other connections are in a transaction."""
    try:
        async with asyncio.timeout(LONGEST_WAIT), AsyncExitStack() as held:
            first = await held.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))
            mine = await _backend_of(first)
            for _ in range(OTHERS):
                other = await held.enter_async_context(await psycopg.AsyncConnection.connect(url))
                if await _backend_of(other) == mine or await _backend_of(first) != mine:
                    return True
    except (TimeoutError, psycopg.OperationalError):  # no more backends: each connection keeps its own, so this is session mode
        return False
    return False


async def _backend_of(conn: psycopg.AsyncConnection[Any]) -> int:
    async with conn.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(READ_BACKEND)
        return int(await cursor.fetchone() or 0)
