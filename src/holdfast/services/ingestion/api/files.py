"""Files: upload, show."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
from fastapi import Query, Request
from starlette.responses import Response

from holdfast.api.acts import Acting, Text
from holdfast.api.envelope import Answer, Data, respond
from holdfast.api.paging import JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.services.ingestion.api.dependencies import Here
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.sources.files import File
from holdfast.services.ingestion.sources.saving import save

routes = Routes("ingestion files")
Conn = psycopg.AsyncConnection[Any]


@routes.add(
    "POST", "/api/ingestion/files", action="ingestion.upload", status=201, answers=Data[File], streams_body=True,
    also=["/sync/files"],
)  # fmt: skip
async def upload_file(
    request: Request, act: Acting, here: Here, name: Annotated[Text | None, Query(max_length=255)] = None
) -> Response:
    """Upload a file: multipart/form-data with the field `file`, or the file as the body with its name in `name`.

    The file is streamed to the store. Larger files than HOLDFAST_INGESTION_LARGEST_UPLOAD are refused with 413.
    """
    got = await save(here, request.stream(), request.headers.get("content-type", ""), name)

    async def do(conn: Conn) -> Answer:
        made = await files.add(conn, got.path, name=got.name, size=got.size, sha256=got.sha256, by=act.actor)
        return Answer(201, made, {"Location": f"/api/ingestion/files/{made.id}"})

    return await act.run("ingestion/file", do, detail={"name": got.name, "bytes": got.size, "sha256": got.sha256})


@routes.add("GET", "/api/ingestion/files/{file_id}", action="ingestion.read", answers=Data[File], refuses=["not-found"])
async def show_file(request: Request, file_id: JobNumber) -> Response:
    """Show an uploaded file: its name, size and hash."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await files.get(conn, file_id))
