"""Objects of the runtime that no instance has, as passes of the loop `reconciliation` have seen them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.services.graphs.runtimes.interface import Observed

Conn = psycopg.AsyncConnection[Any]

SUSPECT = """
    INSERT INTO holdfast.graph_suspects AS s (instance_id, start_token, name)
    SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::text[], %(names)s::text[])
    ON CONFLICT (instance_id, start_token) DO UPDATE SET passes = s.passes + 1, seen_at = clock_timestamp()
    RETURNING instance_id, start_token, passes
"""
ACQUIT = """
    DELETE FROM holdfast.graph_suspects s WHERE NOT EXISTS (
        SELECT FROM unnest(%(ids)s::bigint[], %(tokens)s::text[]) AS still (instance_id, start_token)
        WHERE still.instance_id = s.instance_id AND still.start_token = s.start_token)
"""
FORGET = "DELETE FROM holdfast.graph_suspects WHERE instance_id = %(id)s AND start_token = %(token)s"


async def seen_again(conn: Conn, orphans: Sequence[Observed]) -> dict[tuple[int, str], int]:
    """In how many passes in a row each of them was seen. The others are not suspected any more."""
    parameters = {
        "ids": [one.instance_id for one in orphans],
        "tokens": [one.start_token for one in orphans],
        "names": [one.name for one in orphans],
    }
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(ACQUIT, parameters)
        await cursor.execute(SUSPECT, parameters)
        return {(row[0], row[1]): row[2] for row in await cursor.fetchall()}


async def forget(conn: Conn, gone: Observed) -> None:
    """It was removed."""
    await conn.execute(FORGET, {"id": gone.instance_id, "token": gone.start_token})
