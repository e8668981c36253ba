"""Whether any API token is valid. A module without the web framework: the command line reads it, too."""

from __future__ import annotations

from typing import Any

import psycopg

LIVE_TOKENS = "SELECT EXISTS (SELECT FROM holdfast.tokens WHERE revoked_at IS NULL AND expires_at > clock_timestamp())"


async def has_live_tokens(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether there is a token that is neither revoked nor expired."""
    row = await (await conn.execute(LIVE_TOKENS)).fetchone()
    return row is not None and bool(row[0])
