"""Authentication: an API token, a token of an identity provider, or a trusted gateway.

A token is `hf_<id>_<secret>`: the row is found by the id, and the secret is compared by its hash. A browser sends the cookie
of its session, which names the token and has no secret of it. Headers that name a user are accepted only from a gateway that
sends the shared secret.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import psycopg
from fastapi import Request
from psycopg.rows import class_row, tuple_row

from holdfast.api.plane import Plane, Principal
from holdfast.api.policy import Role
from holdfast.api.problems import Problem
from holdfast.api.sessions import SESSION, Session, session_in
from holdfast.errors import NotFound, UsageError

TOKEN = re.compile(r"^hf_([a-z0-9]{8})_([A-Za-z0-9_-]{43})$")
LONGEST_LIFE = timedelta(days=90)
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="holdfast"'}
GATEWAY_SECRET, GATEWAY_USER, GATEWAY_GROUPS = "x-holdfast-gateway", "x-forwarded-user", "x-forwarded-groups"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Unknown(Problem):
    """Authentication failed. It has the principal if the credentials were valid once, so that it can be audited."""

    def __init__(self, detail: str, was: Principal | None = None, **members: str) -> None:
        super().__init__("unauthenticated", detail, headers=CHALLENGE, **members)
        self.was = was


class Shown(NamedTuple):
    """A token of a request that is not checked yet."""

    id: str
    secret: str | None = None  # None: a session of the token, which has been checked by its signature


async def shown_by(request: Request, plane: Plane) -> Shown | Session | Principal:
    """The token or session of the request, or the principal that a provider or gateway names; else `Unknown`.

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
    if cookie := request.cookies.get(SESSION):
        session = session_in(plane.cursor_key, None if plane.oidc is None else plane.oidc.options.issuer, cookie)
        if session is None:
            raise Unknown(ENDED)
        refuse_foreign_origin(request, plane)
        return session
    raise Unknown("no credentials were sent")


async def identified(conn: psycopg.AsyncConnection[Any], shown: Shown | Session | Principal) -> Principal:
    """The principal of these credentials, after the database has confirmed that they are still valid."""
    if isinstance(shown, Principal):
        return shown
    if isinstance(shown, Shown):
        return await by_token(conn, shown)
    if isinstance(shown.of, Principal):
        await refuse_ended(conn, shown.id)
        return shown.of
    return await by_token(conn, Shown(shown.of), session_id=shown.id)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------

# last_used_at is updated once a minute: otherwise every request would write to the token's row.
USE = """
    WITH found AS (
        SELECT id, name, role, scopes, secret_hash, %(hash)s::bytea IS NULL OR secret_hash = %(hash)s AS proven,
               revoked_at IS NOT NULL AS revoked, expires_at <= clock_timestamp() AS expired,
               EXISTS (SELECT FROM holdfast.ended_sessions e WHERE e.id = %(session)s) AS ended
        FROM holdfast.tokens WHERE id = %(id)s
    ), used AS (
        UPDATE holdfast.tokens t SET last_used_at = clock_timestamp() FROM found f
        WHERE t.id = f.id AND f.proven AND NOT f.revoked AND NOT f.expired AND NOT f.ended
          AND (t.last_used_at IS NULL OR t.last_used_at < clock_timestamp() - interval '1 minute')
    )
    SELECT name, role, scopes, secret_hash, revoked, expired, ended FROM found
"""


async def by_token(conn: psycopg.AsyncConnection[Any], shown: Shown, *, session_id: str | None = None) -> Principal:
    """The principal of this token, or `Unknown`; with `session_id` of a session that was begun with it."""
    assert (shown.secret is None) is (session_id is not None)
    hashed = None if shown.secret is None else sha256(shown.secret.encode()).digest()
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(USE, {"id": shown.id, "hash": hashed, "session": session_id})
        row = await cursor.fetchone()
    if row is None or (hashed is not None and not hmac.compare_digest(bytes(row[3]), hashed)):
        raise Unknown("the token is not valid")
    name, role, scopes, _, revoked, expired, ended = row
    known = None if scopes is None else frozenset(scopes)
    principal = Principal(f"token:{name}", "token", Role(role), known, token_id=shown.id, session_id=session_id)
    if ended:
        raise Unknown(ENDED, was=principal)
    if revoked or expired:  # only callers with the right secret get this detail
        raise Unknown("this token was revoked" if revoked else "this token has expired", was=principal)
    return principal


# ---------------------------------------------------------------------------------------------------------------------
# Sessions
# ---------------------------------------------------------------------------------------------------------------------

ENDED = "the session has ended"
IS_ENDED = "SELECT EXISTS (SELECT FROM holdfast.ended_sessions WHERE id = %(id)s)"
END_SESSION = "INSERT INTO holdfast.ended_sessions (id, ends_at) VALUES (%(id)s, %(ends_at)s) ON CONFLICT (id) DO NOTHING"
# An hour more: the clocks of processes differ.
FORGET_ENDED = "DELETE FROM holdfast.ended_sessions WHERE ends_at < clock_timestamp() - interval '1 hour'"


async def refuse_ended(conn: psycopg.AsyncConnection[Any], session_id: str) -> None:
    """Raise `Unknown` if the user has signed out of this session."""
    row = await (await conn.execute(IS_ENDED, {"id": session_id})).fetchone()
    if row is not None and row[0]:
        raise Unknown(ENDED)


async def end_session(conn: psycopg.AsyncConnection[Any], session: Session) -> None:
    """Make the cookie of this session worthless, in every process. Rows of cookies that are over anyway are removed."""
    await conn.execute(FORGET_ENDED)
    await conn.execute(END_SESSION, {"id": session.id, "ends_at": datetime.fromtimestamp(session.ends, UTC)})


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
           ARRAY (SELECT id FROM holdfast.ended_sessions WHERE id = ANY (%(sessions)s)),
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


class Valid(NamedTuple):
    """What decides whether callers could still authenticate: valid tokens, ended sessions, and the current time."""

    tokens: set[str]
    ended: set[str]
    now: float

    def knows(self, caller: Principal) -> bool:
        """Whether the caller could still authenticate, as far as the stored request shows. Pure."""
        if caller.session_id in self.ended or (caller.token_id is not None and caller.token_id not in self.tokens):
            return False
        return caller.expires_at is None or self.now < caller.expires_at


async def still_valid(conn: psycopg.AsyncConnection[Any], callers: Iterable[Principal]) -> Valid:
    """What has become of the credentials of these callers."""
    of = list(callers)
    given = {"ids": [one.token_id for one in of if one.token_id], "sessions": [one.session_id for one in of if one.session_id]}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(STILL_LIVE, given)
        ((live, ended, now),) = await cursor.fetchall()
    return Valid(set(live), set(ended), now)


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
