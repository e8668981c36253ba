"""Signed cookies: the session of a browser that signed in at an identity provider, and its sign-in while it is under way. Pure.

The values are readable in the cookie and cannot be changed: an HMAC with the key that all processes of an installation share
covers them. Nothing is stored on the server, so every replica accepts them, and they end by themselves, by the clock of the
process, as tokens of a provider do.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from datetime import timedelta
from hashlib import sha256
from typing import Any

from holdfast.api.plane import Principal
from holdfast.api.policy import Role

SESSION = "holdfast_session"
LARGEST = 4_000  # bytes: browsers drop larger cookies


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
    """The cookie of this principal."""
    return sealed(key, f"session {issuer}", [principal.actor, principal.role, sorted(principal.permissions)], lives=lives)


def principal_of(key: bytes, issuer: str, cookie: str) -> Principal | None:
    """The principal of a session of this provider; None if it has ended or is not ours."""
    found = opened(key, f"session {issuer}", cookie)
    if found is None:
        return None
    ends, (actor, role, permissions) = found
    return Principal(actor, "oidc", None if role is None else Role(role), permissions=frozenset(permissions), expires_at=ends)


def _signature(key: bytes, purpose: str, content: str) -> str:
    return _encoded(hmac.digest(key, f"{purpose}\n{content}".encode(), sha256))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
