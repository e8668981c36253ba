"""Values that may be changed while everything runs. Each has a line below; whoever needs one reads it with `value_of`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

import psycopg
from fastapi import Request
from psycopg.rows import tuple_row
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Reason
from holdfast.api.envelope import UNCHANGED, Answer, Data, etag_of, jsonable, require_match, respond, respond_tagged
from holdfast.api.paging import BIGGEST_ID
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes

routes = Routes("config")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A whole number that may be changed, within bounds."""

    default: int
    least: int
    most: int
    says: str


KEYS: Final[Mapping[str, ConfigKey]] = {
    "export.max_duration_seconds": ConfigKey(3600, 60, 86_400, "How long an export may take before it is given up."),
    "cache.metadata.ttl_hours": ConfigKey(24, 1, 720, "How long what is known about a warehouse's tables counts as fresh."),
}


class ConfigValue(BaseModel):
    """A value, where it comes from, and its bounds."""

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
READ_ONE = "SELECT key, value, version, updated_at, updated_by FROM holdfast.config WHERE key = %(key)s FOR UPDATE"
WRITE = """
    INSERT INTO holdfast.config AS c (key, value, updated_by) VALUES (%(key)s, to_jsonb(%(value)s::int), %(by)s)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = c.version + 1, updated_at = clock_timestamp(),
        updated_by = excluded.updated_by
"""


async def value_of(conn: psycopg.AsyncConnection[Any], key: str) -> int:
    """What holds now for this key."""
    rows = {row[0]: row for row in await _rows(conn, READ)}
    return int(_view(key, rows.get(key))["value"])


@routes.add("GET", "/api/config", action="config.read", answers=Data[list[ConfigValue]])
async def list_values(request: Request) -> Response:
    """List every value, its default and its bounds."""
    async with plane_of(request).pool.connection() as conn:
        rows = {row[0]: row for row in await _rows(conn, READ)}
    return respond([_view(key, rows.get(key)) for key in KEYS])


@routes.add(
    "GET", "/api/config/{key}", action="config.read", answers=Data[ConfigValue], refuses=["not-found"], others=[UNCHANGED]
)
async def show_value(request: Request, key: str) -> Response:
    """Show one value."""
    _require_known(key)
    async with plane_of(request).pool.connection() as conn:
        rows = {row[0]: row for row in await _rows(conn, READ)}
    return respond_tagged(request, _view(key, rows.get(key)))


class ValueAsked(Model):
    """A new value."""

    value: Annotated[int, Field(strict=True, ge=-BIGGEST_ID, le=BIGGEST_ID)]
    reason: Reason


@routes.add(
    "PUT",
    "/api/config/{key}",
    action="config.write",
    answers=Data[ConfigValue],
    refuses=["not-found", "changed-meanwhile", "idempotency-mismatch"],
)
async def set_value(request: Request, key: str, asked: ValueAsked, act: Acting) -> Response:
    """Change one value. With If-Match, only if it is still the one that was seen."""
    known = _require_known(key)
    if not known.least <= asked.value <= known.most:
        raise Problem("invalid-request", f"{key} lies between {known.least} and {known.most}")

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        before = _view(key, next(iter(await _rows(conn, READ_ONE, key)), None))
        require_match(request, _tag(before))
        await conn.execute(WRITE, {"key": key, "value": asked.value, "by": act.actor})
        after = _view(key, (await _rows(conn, READ_ONE, key))[0])
        return Answer(200, after, {"ETag": _tag(after)})

    return await act.run(f"config/{key}", do, reason=asked.reason, detail={"value": asked.value})


def _tag(view: dict[str, Any]) -> str:
    return etag_of(jsonable(view))


def _require_known(key: str) -> ConfigKey:
    if key not in KEYS:
        raise Problem("not-found", f"there is no such value; there are: {', '.join(KEYS)}")
    return KEYS[key]


def _view(key: str, row: tuple[Any, ...] | None) -> dict[str, Any]:
    known = KEYS[key]
    _, value, version, updated_at, updated_by = row or (key, known.default, 0, None, None)
    return {
        "key": key,
        "value": value,
        "default": known.default,
        "least": known.least,
        "most": known.most,
        "says": known.says,
        "version": version,
        "updated_at": updated_at,
        "updated_by": updated_by,
    }


async def _rows(conn: psycopg.AsyncConnection[Any], statement: str, key: str | None = None) -> list[tuple[Any, ...]]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, {"key": key})
        return await cursor.fetchall()
