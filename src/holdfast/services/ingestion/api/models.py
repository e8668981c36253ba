"""Data models: list, show, apply."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Text
from holdfast.api.envelope import Answer, Data, respond
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.services.ingestion.api.dependencies import Name
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import InvalidModel, Mistake, model_of
from holdfast.services.ingestion.models.store import ModelVersion

routes = Routes("ingestion models")
Conn = psycopg.AsyncConnection[Any]


@routes.add("GET", "/api/ingestion/models", action="ingestion.read", answers=Data[list[ModelVersion]])
async def list_models(request: Request) -> Response:
    """List the current version of every data model."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await store.listed(conn))


@routes.add("GET", "/api/ingestion/models/{name}", action="ingestion.read", answers=Data[ModelVersion], refuses=["not-found"])
async def show_model(
    request: Request, name: Name, version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None
) -> Response:
    """Show a version of a data model; without a number the current one."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await store.get(conn, name, version))


@routes.add(
    "GET", "/api/ingestion/models/{name}/versions", action="ingestion.read", answers=Data[list[ModelVersion]],
    refuses=["not-found"],
)  # fmt: skip
async def list_versions(request: Request, name: Name) -> Response:
    """List the versions of a data model, newest first."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await store.versions(conn, name))


class ModelAsked(Model):
    """A data model, as its YAML file has it, and what changed."""

    definition: dict[str, Any]
    change_description: Annotated[Text, Field(max_length=4000)] | None = None


@routes.add(
    "PUT", "/api/ingestion/models/{name}", action="ingestion.change_model", answers=Data[ModelVersion],
    refuses=["validation-failed", "idempotency-mismatch"],
)  # fmt: skip
async def apply_model(name: Name, asked: ModelAsked, act: Acting) -> Response:
    """Create a data model, or add a version if its definition changed."""
    model = model_of(asked.definition)
    if model.name != name:
        raise InvalidModel([Mistake("/name", f"is {model.name!r}, but the path says {name!r}; use the same name")])

    async def do(conn: Conn) -> Answer:
        made, _ = await store.apply(conn, model, by=act.actor, change=asked.change_description)
        return Answer(200, made)

    return await act.run(f"ingestion/model/{name}", do)
