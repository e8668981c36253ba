"""Signed cookies: the session of a browser, and its sign-in at an identity provider while it is under way. Pure.

The values are readable in the cookie and cannot be changed: an HMAC with the key that all processes of an installation share
covers them. A session names an API token, or has the principal that an identity provider named; it never has a secret. Every
replica accepts it until its end, by the clock of the process. A sign-out stores its id: `auth.end_session`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import time
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple

from holdfast.api.plane import Principal
from holdfast.api.policy import Role

SESSION: Final = "holdfast_session"
LARGEST: Final = 4_000  # bytes: browsers drop larger cookies
BY_TOKEN: Final = "session of a token"  # noqa: S105 - a purpose
LONGEST: Final = timedelta(days=90)  # a session of a token: the token ends before, or the browser is closed


class Session(NamedTuple):
    """A session whose signature is valid. The database says whether it was ended, and whether its token is still valid."""

    id: str
    ends: float  # in seconds since 1970
    of: str | Principal  # the id of an API token, or the principal that an identity provider named


def sealed(key: bytes, purpose: str, values: Any, *, lives: timedelta) -> str:
    """These values as a text that `opened` accepts for the same purpose, until its end."""
    content = _encoded(json.dumps([time.time() + lives.total_seconds(), values], separators=(",", ":")).encode())
    return f"{content}.{_signature(key, purpose, content)}"


def opened(key: bytes, purpose: str, text: str) -> tuple[float, Any] | None:
    """When it ends and the values; None for a text that is forged, made for another purpose, or too old."""
    content, _, signature = text.partition(".")
    if not text.isascii() or not hmac.compare_digest(_signature(key, purpose, content).encode(), signature.encode()):
        return None
    try:
        ends, values = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    except (ValueError, TypeError, binascii.Error):
        return None
    return (float(ends), values) if ends > time.time() else None


def session_of(key: bytes, issuer: str, principal: Principal, lives: timedelta) -> str:
    """The cookie of a principal that this provider named."""
    return sealed(key, _by(issuer), [_new(), principal.actor, principal.role, sorted(principal.permissions)], lives=lives)


def session_of_token(key: bytes, token_id: str) -> str:
    """The cookie of somebody who has shown this API token."""
    return sealed(key, BY_TOKEN, [_new(), token_id], lives=LONGEST)


def session_in(key: bytes, issuer: str | None, cookie: str) -> Session | None:
    """The session of a cookie; None if it has ended, is not ours, or is of another provider."""
    if found := opened(key, BY_TOKEN, cookie):
        ends, (session_id, token_id) = found
        return Session(session_id, ends, token_id)
    found = None if issuer is None else opened(key, _by(issuer), cookie)
    if found is None:
        return None
    ends, (session_id, actor, role, permissions) = found
    known = frozenset(permissions)
    of = Principal(actor, "oidc", role and Role(role), permissions=known, expires_at=ends, session_id=session_id)
    return Session(session_id, ends, of)


def _by(issuer: str) -> str:
    return f"session by {issuer}"


def _new() -> str:
    return secrets.token_urlsafe(16)


def _signature(key: bytes, purpose: str, content: str) -> str:
    return _encoded(hmac.digest(key, f"{purpose}\n{content}".encode(), sha256))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
