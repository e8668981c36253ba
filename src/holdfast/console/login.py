"""Sign in with an API token, and sign out. `oidc.py` signs in at an identity provider.

The session is a signed cookie that scripts cannot read and other sites cannot send. It names the token and does not contain it.
It is the cookie of the one-time link (`api/login.py`); the API accepts it, too. `SameSite=Lax`: a link in an alert opens its
page, and a form of another site is refused. A sign-out ends the session in every process; so does a revoked token.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.api import audit
from holdfast.api.auth import TOKEN, Shown, Unknown, by_token, end_session
from holdfast.api.limits import with_bounded_body
from holdfast.api.oidc_login import address_to_sign_out
from holdfast.api.plane import plane_of
from holdfast.api.sessions import SESSION, session_in, session_of_token
from holdfast.console.confirm import read_form
from holdfast.console.render import Renderer
from holdfast.console.view import absolute, link

LARGEST_FORM = 10_000  # bytes


async def ask(request: Request) -> Response:
    """The form for a token, and the link to the identity provider."""
    oidc, out = plane_of(request).oidc, request.query_params.get("out") == "1"
    at = await address_to_sign_out(oidc, absolute(request, "login")) if out and oidc and oidc.options.client_id else None
    return page(request, request.query_params.get("next", ""), "", signed_out_at=at)


async def sign_in(request: Request) -> Response:
    """Check the token and set the cookie."""
    bounded = await with_bounded_body(request, LARGEST_FORM)
    form = dict(parse_qsl(bytes(bounded.state.body).decode("utf-8", "replace"), max_num_fields=10))
    wanted, match = form.get("next", ""), TOKEN.match(form.get("token", "").strip())
    if match is None:
        return page(request, wanted, "This is not a token. A token looks like hf_…; `holdfast auth token create` makes one.")
    try:
        async with plane_of(request).pool.connection() as conn:
            caller = await by_token(conn, Shown(*match.groups()))
            await audit.write(conn, caller, "login", "console", request=request)
    except Unknown as unknown:
        return page(request, wanted, f"{unknown.detail[:1].upper()}{unknown.detail[1:]}.")
    response = RedirectResponse(link(request, local(wanted)), 303)
    session = session_of_token(plane_of(request).cursor_key, match[1])
    response.set_cookie(SESSION, session, httponly=True, samesite="lax", secure=request.url.scheme == "https", path="/")
    return response


async def sign_out(request: Request) -> Response:
    """End the session: its cookie is worthless from now on, also where it was copied to. Its token stays valid elsewhere."""
    await read_form(request)
    plane = plane_of(request)
    issuer = None if plane.oidc is None else plane.oidc.options.issuer
    session = session_in(plane.cursor_key, issuer, request.cookies.get(SESSION, ""))
    if session is not None:  # without one a gateway has authenticated the user, and there is nothing to end here
        async with plane.pool.connection() as conn, conn.transaction():
            await end_session(conn, session)
            await audit.write(conn, request.state.caller, "logout", "console", request=request)
    response = RedirectResponse(link(request, "login", out="1"), 303)
    response.delete_cookie(SESSION, path="/")
    return response


def local(wanted: str) -> str:
    """A page of this console; another address is dropped. Pure."""
    return "" if ":" in wanted.split("?")[0] or wanted.startswith(("/", "\\")) or "\n" in wanted else wanted


def page(request: Request, wanted: str, problem: str, *, status: int = 401, signed_out_at: str | None = None) -> Response:
    """The page, with a problem if there is one; `signed_out_at`: after a sign-out, where the provider's session is ended."""
    renderer: Renderer = request.app.state.renderer
    oidc = plane_of(request).oidc
    values = {
        "wanted": wanted,
        "problem": problem,
        "provider": urlsplit(oidc.options.issuer).hostname if oidc is not None and oidc.options.client_id else None,
        "signed_out": request.query_params.get("out") == "1",
        "signed_out_at": signed_out_at,
    }
    return renderer.page(request, "login.html", values, title="Sign in", status=status if problem else 200)
