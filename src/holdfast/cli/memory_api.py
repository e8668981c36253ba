"""The API in memory, for this process alone. Called by: `direct.py`, for what `reads` and `writes.py` do not handle.

Each change is audited under `cli:<user>` in its transaction, as it would be over HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
import psycopg

from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.plane import ApiOptions, Principal
from holdfast.apps.loops import ScheduledLoops
from holdfast.cli.writes import local_caller
from holdfast.database.pool import pool
from holdfast.database.revision import require_current
from holdfast.toolkit.cli.http_transport import content_of, unwrap
from holdfast.toolkit.cli.transport import Answer, headers_of, query_of

NO_LIMIT = 1_000_000_000  # requests per minute
PIECE = 256 * 1024  # bytes of a file that is uploaded


class MemoryApi:
    """The API's app on one database, called without a socket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lifespan: AbstractAsyncContextManager[Any] | None = None

    async def start(self) -> None:
        identity = LocalIdentity()
        options = ApiOptions(version="command line", per_minute=NO_LIMIT, burst=NO_LIMIT)
        app = make_app(
            pool(self._url, most=2),
            options,
            loops=ScheduledLoops(),
            lazy_nouns=catalog.lazy_nouns(),
            services=catalog.lazy_resources(cache(_settings)),
        )
        lifespan = app.router.lifespan_context(app)
        try:
            await lifespan.__aenter__()
        except psycopg.errors.UndefinedTable:
            await asyncio.to_thread(require_current, self._url)
            raise
        self._lifespan = lifespan
        app.state.plane.oidc = identity
        self._client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://in-memory",
            headers={"Authorization": f"Bearer {identity.credentials}"},
            timeout=None,  # nothing goes over a network; the database has its own time-outs
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        key: str | None,
        role: str | None,
    ) -> Answer:
        headers = headers_of(key, role)
        return unwrap(await self._client.request(method, path, params=query_of(params), json=body, headers=headers))

    async def upload(self, path: str, file: Path, params: Mapping[str, Any] | None) -> Answer:
        headers = {"Content-Type": "application/octet-stream"}
        with file.open("rb") as opened:
            response = await self._client.post(path, params=query_of(params), content=_pieces(opened), headers=headers)
        return unwrap(response)

    async def content(self, method: str, path: str, *, body: Mapping[str, Any] | None, accept: str) -> bytes:
        return content_of(await self._client.request(method, path, json=body, headers={"Accept": accept}))

    async def close(self) -> None:
        if self._lifespan is not None:
            await self._client.aclose()
            await self._lifespan.__aexit__(None, None, None)


def _settings() -> Any:
    """The settings with the fields of all services. Few requests need them, and reading them takes a while."""
    settings = import_module("holdfast.settings").settings
    settings.cache_clear()  # the command may have read them before the services added their fields
    return settings()


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE):
        yield piece


class LocalIdentity:
    """The identity provider of an API that only this process can reach: one secret, made for this run, and one user."""

    def __init__(self) -> None:
        self.credentials = f"command.line.{secrets.token_urlsafe(32)}"
        self._principal = local_caller()

    async def principal(self, credentials: str) -> Principal:
        assert secrets.compare_digest(credentials, self.credentials)
        return self._principal

    async def close(self) -> None:
        """Nothing is open."""
