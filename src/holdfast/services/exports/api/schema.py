"""The schema cache: browse, search, refresh. The routes read the cache only; they send no queries to engines."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import psycopg
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Because, Model, Text
from holdfast.api.envelope import Answer, Data, respond
from holdfast.api.periodic import Triggered
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.jobs.config import value_of
from holdfast.services.exports.catalog import cache
from holdfast.services.exports.catalog.cache import Cached
from holdfast.services.exports.catalog.refresh import NAME

routes = Routes("schema")

Word = Annotated[Text, Field(min_length=1, max_length=500)]
Prefix = Annotated[Text, Query(min_length=1, max_length=200)]
Most = Annotated[int, Query(ge=1, le=1000)]
Engine = Annotated[Text | None, Query(max_length=100)]


@routes.add("GET", "/api/schema/catalogs", action="schema.read", answers=Data[list[Cached]])
async def list_catalogs(request: Request, engine: Engine = None) -> Response:
    """List the catalogs of the engines."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await cache.browse(conn, "catalog", engine=engine))


@routes.add(
    "GET", "/api/schema/catalogs/{catalog}/schemas", action="schema.read", answers=Data[list[Cached]], refuses=["not-found"]
)
async def list_schemas(request: Request, catalog: Word, engine: Engine = None) -> Response:
    """List the schemas of a catalog."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await cache.browse(conn, "schema", engine=engine, catalog=catalog))


@routes.add(
    "GET", "/api/schema/catalogs/{catalog}/schemas/{schema}/tables", action="schema.read", answers=Data[list[Cached]],
    refuses=["not-found"],
)  # fmt: skip
async def list_tables(request: Request, catalog: Word, schema: Word, engine: Engine = None) -> Response:
    """List the tables of a schema."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await cache.browse(conn, "table", engine=engine, catalog=catalog, schema=schema))


@routes.add(
    "GET", "/api/schema/catalogs/{catalog}/schemas/{schema}/tables/{table}/columns", action="schema.read",
    answers=Data[list[Cached]], refuses=["not-found"],
)  # fmt: skip
async def list_columns(request: Request, catalog: Word, schema: Word, table: Word, engine: Engine = None) -> Response:
    """List the columns of a table, in their order."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await cache.browse(conn, "column", engine=engine, catalog=catalog, schema=schema, table=table))


@routes.add("GET", "/api/schema/search/tables", action="schema.read", answers=Data[list[Cached]])
async def search_tables(request: Request, q: Prefix, limit: Most = 100) -> Response:
    """Find tables by the prefix of their name, in all catalogs and schemas."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await cache.search(conn, "table", q, limit=limit))


@routes.add("GET", "/api/schema/search/columns", action="schema.read", answers=Data[list[Cached]])
async def search_columns(request: Request, q: Prefix, limit: Most = 100) -> Response:
    """Find columns by the prefix of their name, in all tables."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await cache.search(conn, "column", q, limit=limit))


class Stats(Model):
    """The size of the schema cache, and the last refresh of each catalog."""

    entries: dict[str, int]
    last_refresh: Any
    catalogs: list[dict[str, Any]]


@routes.add("GET", "/api/schema/stats", action="schema.read", answers=Data[Stats])
async def show_stats(request: Request) -> Response:
    """Show the size of the schema cache and the result of the last refresh of each catalog."""
    async with plane_of(request).pool.connection() as conn:
        ttl = timedelta(hours=await value_of(conn, "cache.metadata.ttl_hours"))
        return respond(await cache.stats(conn, ttl))


@routes.add(
    "POST", "/api/schema/admin/refresh", action="schema.refresh", status=202, answers=Data[Triggered],
    refuses=["not-found", "idempotency-mismatch"],
)  # fmt: skip
async def refresh_now(asked: Because, act: Acting) -> Response:
    """Refresh the schema cache in the background: a run of the loop schema_cache, at most once a minute."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        return Answer(202, await act.plane.loops.trigger(conn, NAME, actor=act.actor, reason=asked.reason))

    return await act.run(f"periodic/{NAME}", do, reason=asked.reason)
