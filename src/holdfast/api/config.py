"""Routes for the values that may change at run time. The keys and the statements are in `jobs/config.py`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import psycopg
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Reason
from holdfast.api.envelope import UNCHANGED, Answer, Data, etag_of, jsonable, require_match, respond, respond_tagged
from holdfast.api.paging import BIGGEST_ID
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.errors import UsageError
from holdfast.jobs import config
from holdfast.jobs.config_keys import KEYS

routes = Routes("config")


class ConfigValue(BaseModel):
    """A value, its default and its bounds, and who changed it last."""

    key: str
    value: int
    default: int
    least: int
    most: int
    says: str
    version: int
    updated_at: datetime | None
    updated_by: str | None


@routes.add("GET", "/api/config", action="config.read", answers=Data[list[ConfigValue]])
async def list_values(request: Request) -> Response:
    """List every value, its default and its bounds."""
    async with plane_of(request).pool.connection() as conn:
        return respond([asdict(value) for value in await config.read_values(conn)])


@routes.add(
    "GET", "/api/config/{key}", action="config.read", answers=Data[ConfigValue], refuses=["not-found"], others=[UNCHANGED]
)
async def show_value(request: Request, key: str) -> Response:
    """Show one value."""
    _require_known(key)
    async with plane_of(request).pool.connection() as conn:
        return respond_tagged(request, asdict(await config.read_value(conn, key)))


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
    """Change one value. With If-Match, only if it was not changed since it was read."""
    _require_known(key)

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        require_match(request, _tag(await config.read_value(conn, key, for_update=True)))
        try:
            after = await config.set_value(conn, key, asked.value, by=act.actor)
        except UsageError as error:
            raise Problem("invalid-request", str(error)) from None
        return Answer(200, asdict(after), {"ETag": _tag(after)})

    return await act.run(f"config/{key}", do, reason=asked.reason, detail={"value": asked.value})


def _tag(value: config.ConfigValue) -> str:
    return etag_of(jsonable(asdict(value)))


def _require_known(key: str) -> None:
    if key not in KEYS:
        raise Problem("not-found", f"there is no config key {key}; the keys are: {', '.join(KEYS)}")
