"""Authentication: an API token, a token of an identity provider, or a trusted gateway.

A token is `hf_<id>_<secret>`: the row is found by the id, and the secret is compared by its hash. Headers that name a user are
accepted only from a gateway that sends the shared secret.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import psycopg
from fastapi import Request
from psycopg.rows import class_row, tuple_row

from holdfast.api.plane import Plane, Principal
from holdfast.api.policy import Role
from holdfast.api.problems import Problem
from holdfast.api.sessions import SESSION, principal_of
from holdfast.errors import NotFound, UsageError

TOKEN = re.compile(r"^hf_([a-z0-9]{8})_([A-Za-z0-9_-]{43})$")
LONGEST_LIFE = timedelta(days=90)
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="holdfast"'}
GATEWAY_SECRET, GATEWAY_USER, GATEWAY_GROUPS = "x-holdfast-gateway", "x-forwarded-user", "x-forwarded-groups"
COOKIE = "holdfast_token"  # set at the login of a browser
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Unknown(Problem):
    """Authentication failed. It has the principal if the credentials were valid once, so that it can be audited."""

    def __init__(self, detail: str, was: Principal | None = None, **members: str) -> None:
        super().__init__("unauthenticated", detail, headers=CHALLENGE, **members)
        self.was = was


class Shown(NamedTuple):
    """A token of a request that is not checked yet."""

    id: str
    secret: str


async def shown_by(request: Request, plane: Plane) -> Shown | Principal:
    """The token of the request, or the principal that a provider or gateway names; `Unknown` without valid credentials.

    It uses no database connection: a slow identity provider must not occupy connections of the pool.
    """
    known: Principal | None = getattr(request.state, "known", None)
    if known is not None:  # the console, or the application around it, has authenticated the caller of this request
        return known
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (match := TOKEN.match(credentials.strip())):
        return Shown(*match.groups())
    if scheme.lower() == "bearer" and plane.oidc is not None and credentials.count(".") == 2:
        return await plane.oidc.principal(credentials.strip())
    if scheme:
        raise Unknown("the credentials are not valid")
    if plane.options.gateway_secret is not None and GATEWAY_SECRET in request.headers:
        return _by_gateway(request, plane)
    if match := TOKEN.match(request.cookies.get(COOKIE, "")):
        refuse_foreign_origin(request, plane)
        return Shown(*match.groups())
    if plane.oidc is not None and (session := request.cookies.get(SESSION)):
        principal = principal_of(plane.cursor_key, plane.oidc.options.issuer, session)
        if principal is None:
            raise Unknown("the session has ended")
        refuse_foreign_origin(request, plane)
        return principal
    raise Unknown("no credentials were sent")


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------

# last_used_at is updated once a minute: otherwise every request would write to the token's row.
USE = """
    WITH found AS (
        SELECT id, name, role, scopes, secret_hash,
               revoked_at IS NOT NULL AS revoked, expires_at <= clock_timestamp() AS expired
        FROM holdfast.tokens WHERE id = %(id)s
    ), used AS (
        UPDATE holdfast.tokens t SET last_used_at = clock_timestamp() FROM found f
        WHERE t.id = f.id AND f.secret_hash = %(hash)s AND NOT f.revoked AND NOT f.expired
          AND (t.last_used_at IS NULL OR t.last_used_at < clock_timestamp() - interval '1 minute')
    )
    SELECT name, role, scopes, secret_hash, revoked, expired FROM found
"""


async def by_token(conn: psycopg.AsyncConnection[Any], token_id: str, secret: str) -> Principal:
    """The principal of this token, or `Unknown`."""
    hashed = sha256(secret.encode()).digest()
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(USE, {"id": token_id, "hash": hashed})
        row = await cursor.fetchone()
    if row is None or not hmac.compare_digest(bytes(row[3]), hashed):
        raise Unknown("the token is not valid")
    name, role, scopes, _, revoked, expired = row
    principal = Principal(
        f"token:{name}", "token", Role(role), None if scopes is None else frozenset(scopes), token_id=token_id
    )
    if revoked or expired:  # only callers with the right secret get this detail
        raise Unknown("this token was revoked" if revoked else "this token has expired", was=principal)
    return principal


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token as the API shows it, without its secret."""

    id: str
    name: str
    role: Role
    state: Literal["live", "expired", "revoked"]  # by the database's clock
    scopes: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


VIEW = """
    id, name, role, scopes, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
    CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= clock_timestamp() THEN 'expired' ELSE 'live' END AS state
"""
CREATE_TOKEN = f"""
    INSERT INTO holdfast.tokens (id, name, role, scopes, secret_hash, created_by, expires_at)
    VALUES (%(id)s, %(name)s, %(role)s, %(scopes)s, %(hash)s, %(by)s, clock_timestamp() + %(lives)s)
    RETURNING {VIEW}
"""


async def create_token(
    conn: psycopg.AsyncConnection[Any],
    name: str,
    role: Role,
    *,
    by: str,
    lives: timedelta = LONGEST_LIFE,
    scopes: list[str] | None = None,
) -> tuple[TokenView, str]:
    """Create a token. Returns it with its secret, which is shown only here."""
    if not timedelta(0) < lives <= LONGEST_LIFE:
        raise UsageError(f"the lifetime of a token must be at most {LONGEST_LIFE.days} days, not {lives}")
    token_id = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))
    secret = secrets.token_urlsafe(32)
    parameters = {
        "id": token_id,
        "name": name,
        "role": role,
        "scopes": scopes,
        "hash": sha256(secret.encode()).digest(),
        "by": by,
        "lives": lives,
    }
    async with conn.cursor(row_factory=class_row(TokenView)) as cursor:
        await cursor.execute(CREATE_TOKEN, parameters)
        view = await cursor.fetchone()
    assert view is not None
    return view, f"hf_{token_id}_{secret}"


REVOKE_TOKEN = f"""
    UPDATE holdfast.tokens SET revoked_at = coalesce(revoked_at, clock_timestamp()), revoked_by = coalesce(revoked_by, %(by)s)
    WHERE id = %(id)s RETURNING {VIEW}
"""
LIST_TOKENS = f"SELECT {VIEW} FROM holdfast.tokens WHERE id > %(after)s ORDER BY id LIMIT %(limit)s"
STILL_LIVE = """
    SELECT ARRAY (SELECT id FROM holdfast.tokens
                  WHERE id = ANY (%(ids)s) AND revoked_at IS NULL AND expires_at > clock_timestamp()),
           extract(epoch FROM clock_timestamp())::float8
"""


async def revoke_token(conn: psycopg.AsyncConnection[Any], token_id: str, *, by: str) -> TokenView:
    """Revoke a token."""
    async with conn.cursor(row_factory=class_row(TokenView)) as cursor:
        await cursor.execute(REVOKE_TOKEN, {"id": token_id, "by": by})
        view = await cursor.fetchone()
    if view is None:
        raise NotFound(f"there is no token {token_id}")
    return view


async def list_tokens(conn: psycopg.AsyncConnection[Any], *, after: str = "", limit: int = 50) -> list[TokenView]:
    """Tokens by id, without their secrets."""
    async with conn.cursor(row_factory=class_row(TokenView)) as cursor:
        await cursor.execute(LIST_TOKENS, {"after": after, "limit": limit})
        return await cursor.fetchall()


async def still_live(conn: psycopg.AsyncConnection[Any], token_ids: Iterable[str]) -> tuple[set[str], float]:
    """The valid ones of these tokens, and the current time, for tokens of a provider."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(STILL_LIVE, {"ids": list(token_ids)})
        ((live, now),) = await cursor.fetchall()
    return set(live), now


# ---------------------------------------------------------------------------------------------------------------------
# The first login
# ---------------------------------------------------------------------------------------------------------------------

FIRST_LOGIN, OFFERED_BY = "first look", "holdfast serve"
# The process that offers a first login holds a session-level advisory lock for the token. If the lock is free, that process has
# ended, and its token must be revoked.
OFFER = "SELECT pg_advisory_lock(hashtextextended('holdfast first look ' || %(id)s, 0))"
WITHDRAW_LEFT = """
    UPDATE holdfast.tokens SET revoked_at = clock_timestamp(), revoked_by = created_by
    WHERE name = %(name)s AND created_by = %(by)s AND revoked_at IS NULL
      AND pg_try_advisory_xact_lock(hashtextextended('holdfast first look ' || id, 0))
"""


async def offer_first_look(conn: psycopg.AsyncConnection[Any], lives: timedelta) -> tuple[TokenView, str]:
    """Create a token for the first admin, valid while this connection is open."""
    async with conn.transaction():  # the token becomes visible only after its lock is held
        view, token = await create_token(conn, FIRST_LOGIN, Role.ADMIN, by=OFFERED_BY, lives=lives)
        await conn.execute(OFFER, {"id": view.id})
    return view, token


async def withdraw_left_looks(conn: psycopg.AsyncConnection[Any]) -> None:
    """Revoke the first-login tokens of processes that have died."""
    await conn.execute(WITHDRAW_LEFT, {"name": FIRST_LOGIN, "by": OFFERED_BY})


# ---------------------------------------------------------------------------------------------------------------------
# A gateway
# ---------------------------------------------------------------------------------------------------------------------


def _by_gateway(request: Request, plane: Plane) -> Principal:
    given, wanted = request.headers[GATEWAY_SECRET].encode(), (plane.options.gateway_secret or "").encode()
    if not wanted or not hmac.compare_digest(given, wanted):
        raise Unknown("the gateway did not send the shared secret")
    user = request.headers.get(GATEWAY_USER, "").strip()
    if not user or len(user) > 200:
        raise Unknown("the gateway named no user")
    refuse_foreign_origin(request, plane)
    groups = {group.strip() for group in request.headers.get(GATEWAY_GROUPS, "").split(",")}
    return Principal(f"gateway:{user}", "gateway", highest(groups, plane.options.gateway_roles))


def highest(groups: set[str], roles: dict[str, Role]) -> Role | None:
    """The highest role that the groups grant. Pure."""
    order = list(Role)[:4]
    found = [role for group, role in roles.items() if group in groups]
    return max(found, key=lambda role: order.index(role) if role in order else -1, default=None)


def refuse_foreign_origin(request: Request, plane: Plane) -> None:
    """CSRF protection: a cookie, ours or a gateway's, authenticates the request, so another site could send requests for its
    user."""
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.url.netloc and origin not in plane.options.origins
    if foreign or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Problem("cross-origin", "requests from another site are refused")
