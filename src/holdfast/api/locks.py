"""Locks: list those that are held, and release one whose holder has ended."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Reason, Text
from holdfast.api.bodies import WHY
from holdfast.api.envelope import Answer, Data, Listed
from holdfast.api.paging import Paged
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.errors import LockBusy
from holdfast.jobs.release_lock import release
from holdfast.jobs.views.locks import LockView, list_locks

routes = Routes("locks")

LockKey = Annotated[Text, Field(min_length=1, max_length=500)]


@routes.add("GET", "/api/locks", action="locks.read", answers=Listed[LockView], refuses=["invalid-cursor"])
async def list_them(request: Request, page: Paged, key: LockKey | None = None) -> Response:
    """List the locks that are held, by key."""
    async with plane_of(request).pool.connection() as conn:
        found = await list_locks(conn, key=key, after=page.after or "", limit=page.limit + 1)
    locks = found[: page.limit]
    return page.answer(locks, locks[-1].key if len(found) > page.limit else None)


class Released(BaseModel):
    """A lock that was released, and the ended jobs that had it."""

    key: str
    jobs: list[int]


@routes.add(
    "DELETE",
    "/api/locks/{key:path}",
    action="locks.release",
    answers=Data[Released],
    refuses=["not-found", "lock-held", "idempotency-mismatch"],
)
async def release_lock(key: LockKey, act: Acting, reason: Annotated[Reason, Query(description=WHY)]) -> Response:
    """Release a lock whose holders have all ended. If a holder has not ended, cancel that job instead."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        try:
            return Answer(200, {"key": key, "jobs": await release(conn, key)})
        except LockBusy as busy:
            detail = f"job {busy.holder} has not ended; cancel it, and its end releases the lock"
            raise Problem("lock-held", detail, lock_key=key, holder_job_id=busy.holder) from None

    return await act.run(f"lock/{key}", do, reason=reason)
