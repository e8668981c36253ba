"""Values that may change while programs run. The API writes them; routes, handlers and loops read them with `value_of`.

Every key is declared in `config_keys.py` with its default and its bounds. The database has a row only for a value that was set.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import UsageError
from holdfast.jobs.config_keys import KEYS


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The current value of a key. `version` is 0 and the last two are None while the default holds."""

    key: str
    value: int
    default: int
    least: int
    most: int
    says: str
    version: int
    updated_at: datetime | None
    updated_by: str | None


READ = "SELECT key, value, version, updated_at, updated_by FROM holdfast.config"
READ_ONE = READ + " WHERE key = %(key)s"
LOCK_ONE = READ_ONE + " FOR UPDATE"


async def value_of(conn: psycopg.AsyncConnection[Any], key: str) -> int:
    """The current value of this key."""
    return (await read_value(conn, key)).value


async def read_value(conn: psycopg.AsyncConnection[Any], key: str, *, for_update: bool = False) -> ConfigValue:
    """One value; `for_update` locks its row until the end of the transaction."""
    rows = await _rows(conn, LOCK_ONE if for_update else READ_ONE, key)
    return _value(key, rows[0] if rows else None)


async def read_values(conn: psycopg.AsyncConnection[Any]) -> list[ConfigValue]:
    """Every declared value."""
    rows = {row[0]: row for row in await _rows(conn, READ)}
    return [_value(key, rows.get(key)) for key in KEYS]


WRITE = """
    INSERT INTO holdfast.config AS c (key, value, updated_by) VALUES (%(key)s, to_jsonb(%(value)s::int), %(by)s)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = c.version + 1, updated_at = clock_timestamp(),
        updated_by = excluded.updated_by
"""


async def set_value(conn: psycopg.AsyncConnection[Any], key: str, value: int, *, by: str) -> ConfigValue:
    """Change one value, in the caller's transaction. `UsageError` if it is out of bounds."""
    known = KEYS[key]
    if not known.least <= value <= known.most:
        raise UsageError(f"{key} must be between {known.least} and {known.most}, not {value}")
    await conn.execute(WRITE, {"key": key, "value": value, "by": by})
    return await read_value(conn, key)


def _value(key: str, row: tuple[Any, ...] | None) -> ConfigValue:
    known = KEYS[key]
    _, value, version, updated_at, updated_by = row or (key, known.default, 0, None, None)
    return ConfigValue(key, int(value), known.default, known.least, known.most, known.says, version, updated_at, updated_by)


async def _rows(conn: psycopg.AsyncConnection[Any], statement: str, key: str | None = None) -> list[tuple[Any, ...]]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, {"key": key})
        return await cursor.fetchall()
