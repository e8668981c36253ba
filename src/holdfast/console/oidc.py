"""Sign in at the identity provider: send the browser there, and take it back with a session. Called by: `app.py`.

The protocol is in `api/oidc_login.py`. What is under way is in a signed cookie that lives for ten minutes and only for the
addresses of the sign-in; `SameSite=Lax`, because the provider sends the browser back from another site.
"""

from __future__ import annotations

from dataclasses import astuple
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.api import audit
from holdfast.api.oidc import Oidc
from holdfast.api.oidc_login import SignInRefused, Started, address_to_ask, signed_in
from holdfast.api.plane import Principal, plane_of
from holdfast.api.problems import Problem
from holdfast.api.sessions import LARGEST, SESSION, opened, sealed, session_of
from holdfast.console import login
from holdfast.console.view import absolute, link

COOKIE: Final = "holdfast_sign_in"
LIVES: Final = timedelta(minutes=10)
PURPOSE: Final = "sign-in"


async def start(request: Request) -> Response:
    """Send the browser to the provider."""
    oidc, wanted = _provider(request), request.query_params.get("next", "")[:1000]
    started = Started.new(wanted)
    try:
        address = await address_to_ask(oidc, started, _redirect_uri(request))
    except SignInRefused as refused:
        return _refused(request, wanted, refused)
    response = RedirectResponse(address, 303)
    kept = sealed(plane_of(request).cursor_key, PURPOSE, astuple(started), lives=LIVES)
    _set(response, request, COOKIE, kept, LIVES, path=link(request, "login"))
    return response


async def finish(request: Request) -> Response:
    """Take the browser back: check the answer, start the session, and open the page that was wanted."""
    oidc, plane = _provider(request), plane_of(request)
    kept = opened(plane.cursor_key, PURPOSE, request.cookies.get(COOKIE, ""))
    started = None if kept is None else Started(*kept[1])
    wanted = "" if started is None else started.wanted
    try:
        if started is None:
            raise SignInRefused("this sign-in was started more than ten minutes ago, or in another browser")
        principal = await signed_in(oidc, started, dict(request.query_params), _redirect_uri(request))
        await _admit(request, oidc, principal)
        session = session_of(plane.cursor_key, oidc.options.issuer, principal, oidc.options.session)
        if len(session) > LARGEST:
            raise SignInRefused("your permissions do not fit into a session cookie; sign in with an API token", 403)
    except SignInRefused as refused:
        response = _refused(request, wanted, refused)
    else:
        response = RedirectResponse(link(request, login.local(wanted)), 303)
        _set(response, request, SESSION, session, oidc.options.session, path="/")
    response.delete_cookie(COOKIE, path=link(request, "login"))
    return response


async def _admit(request: Request, oidc: Oidc, principal: Principal) -> None:
    """Record the sign-in; a user who may do nothing gets no session."""
    may_something = principal.role is not None or bool(principal.permissions)
    async with plane_of(request).pool.connection() as conn:
        outcome = "done" if may_something else "denied"
        await audit.write(conn, principal, "login", "console", request=request, outcome=outcome)
    if not may_something:
        raise SignInRefused(
            f"the identity provider knows you as {principal.actor.removeprefix('oidc:')}, but none of your groups has a role "
            f"here. An admin gives a group of your claim `{oidc.options.groups_claim}` a role with HOLDFAST_OIDC_ROLES",
            403,
        )


def _provider(request: Request) -> Oidc:
    oidc = plane_of(request).oidc
    if oidc is None or oidc.options.client_id is None:
        raise Problem("not-found", "no identity provider is configured for sign-ins; set HOLDFAST_OIDC_CLIENT_ID")
    return oidc


def _refused(request: Request, wanted: str, refused: SignInRefused) -> Response:
    said = refused.sentence
    return login.page(request, wanted, f"{said[:1].upper()}{said[1:]}.", status=refused.status)


def _redirect_uri(request: Request) -> str:
    return absolute(request, "login/callback")


def _set(response: Response, request: Request, name: str, value: str, lives: timedelta, *, path: str) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, max_age=int(lives.total_seconds()), path=path, httponly=True, samesite="lax", secure=secure
    )
