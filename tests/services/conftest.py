"""Callers of the app that a service's conftest makes: one client for each role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import psycopg
import pytest
from fastapi import FastAPI

from holdfast.api.auth import create_token
from holdfast.api.policy import Role

Client = httpx2.AsyncClient
AsRole = Callable[..., Awaitable[Client]]


@pytest.fixture
async def as_role(app: FastAPI, conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[AsRole]:
    """Makes clients: `await as_role("ops")` sends a fresh token of this role."""
    async with AsyncExitStack() as stack:

        async def client(role: str, name: str | None = None, **token: Any) -> Client:
            _, secret = await create_token(conn, name or role, Role(role), by="test", **token)
            transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
            headers = {"Authorization": f"Bearer {secret}"}
            return await stack.enter_async_context(Client(transport=transport, base_url="http://plane", headers=headers))

        yield client


@pytest.fixture
async def ops(as_role: AsRole) -> Client:
    return await as_role("ops")


@pytest.fixture
async def analyst(as_role: AsRole) -> Client:
    return await as_role("analyst")


@pytest.fixture
async def viewer(as_role: AsRole) -> Client:
    return await as_role("viewer")


@pytest.fixture
async def admin(as_role: AsRole) -> Client:
    return await as_role("admin")
