"""Favourites of the caller: mappings, snapshots and graph instances."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import psycopg
from fastapi import Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from holdfast.api.acts import Acting, Model
from holdfast.api.envelope import Answer, Data, Listed
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.errors import NotFound
from holdfast.services.graphs.instances import favorites
from holdfast.services.graphs.instances.favorites import Favorite

routes = Routes("favorites")

Conn = psycopg.AsyncConnection[Any]
ResourceType = Literal["mapping", "snapshot", "instance"]


class FavoriteAsked(Model):
    """What to add."""

    resource_type: ResourceType
    resource_id: JobNumber


class Removed(BaseModel):
    """Whether there was one."""

    removed: bool


@routes.add("GET", "/api/favorites", action="favorites.write", answers=Listed[Favorite], refuses=["invalid-cursor"])
async def list_favorites(
    request: Request, page: Paged, resource_type: Annotated[ResourceType | None, Query()] = None
) -> Response:
    """List the caller's favourites with their names and owners."""
    async with plane_of(request).pool.connection() as conn:
        found, last = await favorites.listed(
            conn, caller_of(request).actor, limit=page.limit, after=page.after, resource_type=resource_type
        )
    return page.answer(found, last)


@routes.add(
    "POST", "/api/favorites", action="favorites.write", status=201, answers=Data[Favorite],
    refuses=["not-found", "already-exists", "idempotency-mismatch"],
)  # fmt: skip
async def add_favorite(asked: FavoriteAsked, act: Acting) -> Response:
    """Add a favourite."""

    async def do(conn: Conn) -> Answer:
        made = await favorites.add(conn, act.actor, asked.resource_type, asked.resource_id)
        if made is None:
            raise Problem("already-exists", f"{asked.resource_type} {asked.resource_id} is a favourite already")
        if not made.exists:
            raise NotFound(f"there is no {asked.resource_type} {asked.resource_id}")
        return Answer(201, made)

    return await act.run(f"favorite/{asked.resource_type}/{asked.resource_id}", do)


@routes.add(
    "DELETE", "/api/favorites/{resource_type}/{resource_id}", action="favorites.write", answers=Data[Removed],
    refuses=["idempotency-mismatch"],
)  # fmt: skip
async def remove_favorite(resource_type: ResourceType, resource_id: JobNumber, act: Acting) -> Response:
    """Remove a favourite. No error if there is none."""

    async def do(conn: Conn) -> Answer:
        return Answer(200, {"removed": await favorites.remove(conn, act.actor, resource_type, resource_id)})

    return await act.run(f"favorite/{resource_type}/{resource_id}", do)
