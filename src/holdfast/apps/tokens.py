"""API tokens straight from the database, for whoever has it: how the first admin gets in. Called by: `holdfast auth`."""

from __future__ import annotations

import getpass
from datetime import timedelta

from holdfast.api import audit, auth
from holdfast.api.auth import TokenView
from holdfast.api.plane import Principal
from holdfast.api.policy import Role
from holdfast.database.pool import connect


def _me() -> Principal:
    return Principal(f"cli:{getpass.getuser()}", "command line", Role.ADMIN)


async def create(url: str, name: str, role: Role, days: int, reason: str) -> tuple[TokenView, str]:
    """Make a token, and a line in the audit with it."""
    conn = await connect(url)
    try:
        async with conn.transaction():
            view, token = await auth.create_token(conn, name, role, by=_me().actor, lives=timedelta(days=days))
            detail = {"name": name, "role": role}
            await audit.write(conn, _me(), "tokens.write", f"token/{view.id}", reason=reason, detail=detail)
        return view, token
    finally:
        await conn.close()


async def revoke(url: str, token_id: str, reason: str) -> TokenView:
    """Revoke a token, and say so in the audit."""
    conn = await connect(url)
    try:
        async with conn.transaction():
            view = await auth.revoke_token(conn, token_id, by=_me().actor)
            await audit.write(conn, _me(), "tokens.write", f"token/{token_id}", reason=reason, detail={"revoked": True})
        return view
    finally:
        await conn.close()


async def listed(url: str) -> list[TokenView]:
    """The first 200 tokens by id."""
    conn = await connect(url)
    try:
        return await auth.list_tokens(conn, limit=200)
    finally:
        await conn.close()
