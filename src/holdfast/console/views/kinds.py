"""Kinds with their waiting jobs, counted up to a cap that keeps the pages fast."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from holdfast.jobs.views.workers import KINDS, KindView

CAP: Final = 200  # waiting jobs of one kind
COUNTED: Final = "LIMIT 10001"
assert COUNTED in KINDS, "the statement counts waiting jobs up to another cap"
LIST = KINDS.replace(COUNTED, f"LIMIT {CAP} + 1")


async def list_kinds(conn: psycopg.AsyncConnection[Any]) -> list[KindView]:
    """As the API lists them; `waiting` is at most one more than the cap."""
    async with conn.cursor(row_factory=class_row(KindView)) as cursor:
        await cursor.execute(LIST)
        return await cursor.fetchall()


def waiting_text(count: int) -> str:
    """The number of waiting jobs. Pure."""
    return f"{CAP}+" if count > CAP else f"{count:,}"
