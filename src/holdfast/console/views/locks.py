"""The state of the jobs that hold locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

STATES = "SELECT id, kind, state FROM holdfast.jobs WHERE id = ANY (%(jobs)s)"


async def states_of(conn: psycopg.AsyncConnection[Any], jobs: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Kind and state of these jobs."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(STATES, {"jobs": list(jobs)})
        return {row["id"]: row for row in await cursor.fetchall()}
