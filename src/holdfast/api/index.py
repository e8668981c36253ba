"""The start page of the API: name, version and links, as JSON or as HTML; and `/docs`. Neither needs credentials."""

from __future__ import annotations

from html import escape

from fastapi import Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

from holdfast.api.acts import Model
from holdfast.api.envelope import Data, respond
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes

routes = Routes("index")
LINKS = {
    "health": "/health",
    "ready": "/ready",
    "jobs": "/api/jobs",
    "kinds": "/api/kinds",
    "metrics": "/metrics",
    "openapi": "/openapi.json",
    "docs": "/docs",
}
CLOSED = """<p>The API documentation is not served here.</p>
<ul>
<li>Set <code>HOLDFAST_DOCS_OPEN=true</code> and restart the server: this page then shows every route.</li>
<li>Or read <a href="/openapi.json">/openapi.json</a> with a token: <code>Authorization: Bearer &lt;token&gt;</code>.
<code>holdfast auth token create</code> makes one.</li>
</ul>"""


class Index(Model):
    """What serves this API."""

    name: str
    version: str
    links: dict[str, str]


@routes.add("GET", "/", action="index.read", answers=Data[Index])
async def show_index(request: Request) -> Response:
    """Show the name, the version and the main addresses."""
    version = plane_of(request).options.version
    if "text/html" not in request.headers.get("accept", ""):
        return respond({"name": "holdfast", "version": version, "links": LINKS})
    items = "".join(f'<li><a href="{path}">{path}</a>: {name}</li>' for name, path in LINKS.items())
    return _page(f"<p>Fenced background jobs in Postgres, version {escape(version)}.</p><ul>{items}</ul>")


@routes.add("GET", "/docs", action="index.read", media="text/html")
async def show_docs(request: Request) -> Response:
    """Show Swagger UI, or how to open it."""
    if plane_of(request).options.docs_open:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="Holdfast")
    return _page(CLOSED)


def _page(body: str) -> HTMLResponse:
    return HTMLResponse(f"<!doctype html><html lang=en><title>Holdfast</title><h1>Holdfast</h1>{body}</html>")
