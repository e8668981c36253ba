"""The checks of every request of the worker protocol: the role, the size of the body, and the attempt.

Used by: `worker_protocol.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from fastapi import Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from psycopg_pool import AsyncConnectionPool
from pydantic import ValidationError

from holdfast.api.guarded import guard
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.jobs.held import held
from holdfast.jobs.model import AttemptId, Claim, JobId
from holdfast.protocol.wire import Said

LARGEST_BODY = 8_000_000  # bytes: a batch of results, or the children of a fan-out

T = TypeVar("T", bound=Said)
Holding = tuple[psycopg.AsyncConnection[Any], Claim]


async def workers_only(request: Request) -> None:
    """The guard of every route, before the request is read."""
    request.state.action = "work"
    request.state.caller = await guard(request, "work")


def pool_of(request: Request) -> AsyncConnectionPool[Any]:
    return plane_of(request).pool


def actor_of(request: Request) -> str:
    return caller_of(request).actor


Actor = Annotated[str, Depends(actor_of)]


class ShownAttempt(NamedTuple):
    """An attempt id, and the actor that sent it."""

    id: AttemptId
    actor: str


def shown_attempt(actor: Actor, if_match: Annotated[str | None, Header()] = None) -> ShownAttempt:
    """The attempt id in If-Match. `*` is refused, because it would match any attempt."""
    shown = (if_match or "").strip()
    if not shown or shown == "*":
        raise Problem("attempt-required", 'send If-Match: "<attempt_id>" with the attempt id of your claim')
    try:
        return ShownAttempt(AttemptId(str(UUID(shown.strip('"')))), actor)
    except ValueError:
        raise Problem("stale-attempt", "If-Match is not an attempt id") from None


Pool = Annotated[AsyncConnectionPool[Any], Depends(pool_of)]
Attempt = Annotated[ShownAttempt, Depends(shown_attempt)]


def said_as(model: type[T]) -> Any:
    """The body, read up to its limit and validated; the parser refuses deep nesting."""

    async def read(request: Request) -> T:
        raw = bytearray()
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > LARGEST_BODY:
                raise Problem("too-large", f"the body must have at most {LARGEST_BODY:,} bytes", largest=LARGEST_BODY)
        try:
            return model.model_validate_json(bytes(raw))
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None

    read.model = model  # type: ignore[attr-defined]  # for the reference page
    return Depends(read)


@asynccontextmanager
async def holding(pool: AsyncConnectionPool[Any], job_id: int, attempt: ShownAttempt, what: str) -> AsyncIterator[Holding]:
    """A connection, and the claim as read from the database; refused if another principal registered its worker."""
    async with pool.connection() as conn:
        yield conn, await held(conn, JobId(job_id), attempt.id, what, owner=attempt.actor)
