"""Sign in at an OpenID Connect provider from a browser: the authorization code flow with PKCE. Called by: `console/oidc.py`.

The browser carries `state`, `nonce` and the code verifier in a signed cookie. The code is exchanged by this process; the ID
token must be signed by the provider, be meant for our client id, and have our nonce.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import httpx2

from holdfast.addresses import Origin
from holdfast.api.auth import Unknown
from holdfast.api.oidc import LARGEST_ANSWER, LONGEST_READ, Oidc
from holdfast.api.plane import Principal
from holdfast.telemetry.log import log

AT_ONCE = 8  # codes that are exchanged at the same time: the sign-in needs no credentials of ours
_exchanging = asyncio.Semaphore(AT_ONCE)


class SignInRefused(Exception):
    """Why a sign-in failed, as a sentence for its user; `status` is that of the page."""

    def __init__(self, sentence: str, status: int = 401) -> None:
        super().__init__(sentence)
        self.sentence, self.status = sentence, status


@dataclass(frozen=True, slots=True)
class Started:
    """A sign-in that is under way; the browser keeps it in a signed cookie."""

    state: str
    nonce: str
    verifier: str
    wanted: str  # the page to open afterwards

    @classmethod
    def new(cls, wanted: str) -> Started:
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), wanted)


async def address_to_ask(oidc: Oidc, started: Started, redirect_uri: str) -> str:
    """Where the browser is sent to."""
    given = {
        "response_type": "code",
        "client_id": oidc.options.client_id,
        "redirect_uri": redirect_uri,
        "scope": oidc.options.scopes,
        "state": started.state,
        "nonce": started.nonce,
        "code_challenge": base64.urlsafe_b64encode(sha256(started.verifier.encode()).digest()).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    place = await _endpoint(oidc, "authorization_endpoint")
    return f"{place}{'&' if '?' in place else '?'}{urlencode(given)}"


async def address_to_sign_out(oidc: Oidc, back: str) -> str | None:
    """Where a browser ends its session at the provider; None if the provider has no such page."""
    try:
        place = await _endpoint(oidc, "end_session_endpoint")
    except SignInRefused:
        return None
    given = urlencode({"client_id": oidc.options.client_id or "", "post_logout_redirect_uri": back})
    return f"{place}{'&' if '?' in place else '?'}{given}"


async def signed_in(oidc: Oidc, started: Started, answer: dict[str, str], redirect_uri: str) -> Principal:
    """The user, from the query with which the provider sent the browser back."""
    if not hmac.compare_digest(started.state.encode(), answer.get("state", "").encode()):
        raise SignInRefused("this sign-in was started in another tab or by another site")
    if answer.get("iss", oidc.options.issuer) != oidc.options.issuer:
        raise SignInRefused("the answer came from another identity provider")
    if "error" in answer:
        said = f"{answer['error']}: {answer['error_description']}" if answer.get("error_description") else answer["error"]
        raise SignInRefused(f"the identity provider refused the sign-in ({said[:300]})")
    if not answer.get("code"):
        raise SignInRefused("the identity provider sent no code")
    token = await _exchanged(oidc, started, answer["code"], redirect_uri)
    try:
        claims = await oidc.claims(token, oidc.options.client_id or "")
        principal = oidc.known(claims)
    except Unknown:
        raise SignInRefused("the ID token of the identity provider is not valid for this console") from None
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), started.nonce.encode()):
        raise SignInRefused("the ID token belongs to another sign-in")
    if claims.get("azp", oidc.options.client_id) != oidc.options.client_id:
        raise SignInRefused("the ID token was made for another client")
    return principal


async def _exchanged(oidc: Oidc, started: Started, code: str, redirect_uri: str) -> str:
    """The ID token for this code."""
    options = oidc.options
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": started.verifier,
        "client_id": options.client_id or "",
    }
    place, basic = await _endpoint(oidc, "token_endpoint"), None
    if options.client_secret is not None:
        if "client_secret_post" in await oidc.says("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
            form["client_secret"] = options.client_secret
        else:
            basic = httpx2.BasicAuth(options.client_id or "", options.client_secret)
    try:
        async with (
            _exchanging,
            asyncio.timeout(LONGEST_READ),
            httpx2.AsyncClient(timeout=5, follow_redirects=False, trust_env=False, auth=basic) as client,
        ):
            reply = await client.post(place, data=form, headers={"Accept": "application/json"})
            said: Any = reply.json() if len(reply.content) <= LARGEST_ANSWER else None
    except (httpx2.HTTPError, TimeoutError, ValueError) as error:
        raise _unreachable(oidc, error) from None
    token = said.get("id_token") if isinstance(said, dict) and reply.status_code == 200 else None
    if not isinstance(token, str):
        why = str(said.get("error", reply.status_code))[:100] if isinstance(said, dict) else str(reply.status_code)
        log.warning("oidc_login_refused", issuer=options.issuer, error=why)
        raise SignInRefused(f"the identity provider did not accept the code of this sign-in ({why})")
    return token


async def _endpoint(oidc: Oidc, name: str) -> str:
    """An address of the provider's configuration, over https or on this machine."""
    try:
        place = str(await oidc.says(name, ""))
    except Exception as error:  # any answer of the provider
        raise _unreachable(oidc, error) from None
    origin = Origin.of(place)
    if origin is None or not origin.keeps_secrets:
        raise SignInRefused(f"the configuration of {oidc.options.issuer} has no usable {name}", 503)
    return place


def _unreachable(oidc: Oidc, error: Exception) -> SignInRefused:
    log.warning("oidc_login_refused", issuer=oidc.options.issuer, error=f"{type(error).__name__}: {error}")
    return SignInRefused(f"the identity provider {oidc.options.issuer} does not answer as expected; try again later", 503)
