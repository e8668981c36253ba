"""One-time login link: the first login on an installation without tokens.

The link contains a code and not a token. Only this process knows the code, and it ends with the process. A browser gets the
session in a cookie that is HttpOnly and SameSite; the command line gets the token as JSON and stores it in a file.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Annotated

from fastapi import Header, Query, Request
from starlette.responses import RedirectResponse, Response

from holdfast.api import audit
from holdfast.api.acts import Model
from holdfast.api.auth import TOKEN, Unknown
from holdfast.api.envelope import Data, respond
from holdfast.api.plane import Principal, plane_of
from holdfast.api.policy import Role
from holdfast.api.routes import Routes
from holdfast.api.sessions import SESSION, session_of_token
from holdfast.telemetry import redact

routes = Routes("login")
HOME = "/api/whoami"  # where a browser is sent if there is no console


class OneTimeLogin:
    """A code, and the token for the first caller that sends it."""

    def __init__(self, token: str, name: str, role: Role) -> None:
        self.code = secrets.token_urlsafe(32)
        self.caller = Principal(f"token:{name}", "token", role)
        self._token: str | None = token
        redact.hide(self.code)

    def redeem(self, code: str) -> str | None:
        """The token; None for a wrong code, and after the first call."""
        if not hmac.compare_digest(code.encode(), self.code.encode()):
            return None
        token, self._token = self._token, None
        return token


class SignedIn(Model):
    """The signed-in caller."""

    actor: str
    token: str


@routes.add(
    "GET",
    "/login",
    action="login",
    answers=Data[SignedIn],
    refuses=["unauthenticated"],
    others=[(303, "A browser is signed in and redirected")],
)
async def login(
    request: Request,
    code: Annotated[str, Query(min_length=1, max_length=100)],
    accept: Annotated[str, Header(max_length=1000)] = "*/*",
) -> Response:
    """Sign in with the code of a one-time link: a browser gets a cookie, a client that accepts JSON gets a token."""
    offered: OneTimeLogin | None = request.app.state.login
    token = None if offered is None else offered.redeem(code)
    if offered is None or token is None:
        raise Unknown(
            "this link was already used, or belongs to another process",
            what_to_do="Restart the control plane for another link, or create a token: `holdfast auth token create`.",
        )
    async with plane_of(request).pool.connection() as conn:
        await audit.write(conn, offered.caller, "login", "one-time link", request=request)
    if "text/html" not in accept:
        return respond({"actor": offered.caller.actor, "token": token})
    sent_on, match = RedirectResponse(request.app.state.home, 303), TOKEN.match(token)
    assert match is not None
    session = session_of_token(plane_of(request).cursor_key, match[1])
    sent_on.set_cookie(SESSION, session, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return sent_on
