"""API tokens: create one and show its secret once, list them, revoke one."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import psycopg
from fastapi import Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api import auth
from holdfast.api.acts import Acting, Model, Reason, Text
from holdfast.api.auth import TokenView
from holdfast.api.bodies import WHY
from holdfast.api.envelope import Answer, Data, Listed
from holdfast.api.paging import Paged
from holdfast.api.plane import plane_of
from holdfast.api.policy import POLICY, Role
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes

routes = Routes("tokens")


@routes.add("GET", "/api/tokens", action="tokens.read", answers=Listed[TokenView], refuses=["invalid-cursor"])
async def list_them(request: Request, page: Paged) -> Response:
    """List the tokens, without their secrets."""
    async with plane_of(request).pool.connection() as conn:
        found = await auth.list_tokens(conn, after=page.after or "", limit=page.limit + 1)
    tokens = found[: page.limit]
    return page.answer(tokens, tokens[-1].id if len(found) > page.limit else None)


class TokenAsked(Model):
    """A new token."""

    name: Annotated[
        Text, Field(min_length=1, max_length=200, description="The name of its owner; its actions are recorded with it.")
    ]
    role: Role
    days: Annotated[int, Field(ge=1, le=auth.LONGEST_LIFE.days)] = auth.LONGEST_LIFE.days
    scopes: Annotated[list[str], Field(min_length=1, max_length=50)] | None = None
    reason: Reason


class TokenMade(BaseModel):
    """A token with its secret, which is shown only once: a replayed response does not contain it."""

    id: str
    name: str
    role: Role
    token: str | None


@routes.add("POST", "/api/tokens", action="tokens.write", status=201, answers=Data[TokenMade], refuses=["idempotency-mismatch"])
async def make_token(asked: TokenAsked, act: Acting) -> Response:
    """Create a token; only this response contains its secret."""
    unknown = sorted(set(asked.scopes or ()) - set(POLICY))
    if unknown:
        raise Problem("invalid-request", f"no such action: {', '.join(unknown)[:200]}")

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        view, token = await auth.create_token(
            conn, asked.name, asked.role, by=act.actor, lives=timedelta(days=asked.days), scopes=asked.scopes
        )
        told = {"id": view.id, "name": view.name, "role": view.role, "token": None}
        return Answer(201, told, {"Location": f"/api/tokens/{view.id}"}, shown_once={"token": token})

    return await act.run("token", do, reason=asked.reason, detail={"name": asked.name, "role": asked.role})


@routes.add(
    "DELETE",
    "/api/tokens/{token_id}",
    action="tokens.write",
    answers=Data[TokenView],
    refuses=["not-found", "idempotency-mismatch"],
)
async def revoke_token(
    token_id: Annotated[str, Path(pattern=r"^[a-z0-9]{8}$")], act: Acting, reason: Annotated[Reason, Query(description=WHY)]
) -> Response:
    """Revoke a token: from now on it is not valid."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        return Answer(200, await auth.revoke_token(conn, token_id, by=act.actor))

    return await act.run(f"token/{token_id}", do, reason=reason)
