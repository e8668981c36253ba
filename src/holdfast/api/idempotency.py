"""`Idempotency-Key`: a repeated request gets the stored response of the first. Responses are kept for a day.

The row is inserted before the action and filled after it, in the transaction of the action. So a second request with the same
key waits for the first: if the first commits, it gets the stored response; if the first fails, it runs the action itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Json as AsJson

from holdfast.api.answers import Answer
from holdfast.api.asked import Asked
from holdfast.api.problems import SOON, Problem

KEPT = timedelta(hours=24)
VALID = re.compile(r"^[\x21-\x7e]{1,255}$")

RESERVE = """
    INSERT INTO holdfast.idempotency AS i (actor, key, fingerprint, expires_at)
    VALUES (%(actor)s, %(key)s, %(fingerprint)s, clock_timestamp() + %(kept)s)
    ON CONFLICT (actor, key) DO UPDATE
    SET fingerprint = excluded.fingerprint, expires_at = excluded.expires_at, status = NULL, headers = NULL, body = NULL
    WHERE i.expires_at <= clock_timestamp()
    RETURNING key
"""
FIND = "SELECT fingerprint, status, headers, body FROM holdfast.idempotency WHERE actor = %(actor)s AND key = %(key)s"
STORE = """
    UPDATE holdfast.idempotency SET status = %(status)s, headers = %(headers)s, body = %(body)s
    WHERE actor = %(actor)s AND key = %(key)s
"""
# Each store also deletes a few expired rows, so that no loop is needed.
FORGET = """
    DELETE FROM holdfast.idempotency WHERE (actor, key) IN (
        SELECT actor, key FROM holdfast.idempotency WHERE expires_at < clock_timestamp() - interval '1 hour'
        ORDER BY expires_at LIMIT 10 FOR UPDATE SKIP LOCKED)
"""


class Stored(NamedTuple):
    """The stored response of the first request."""

    fingerprint: bytes
    status: int
    headers: Mapping[str, str]
    body: Any


def key_of(request: Asked) -> str | None:
    """The idempotency key of the request, if there is one."""
    key = request.headers.get("idempotency-key")
    if key is not None and not VALID.match(key):
        raise Problem("invalid-request", "an Idempotency-Key must have 1 to 255 visible ASCII characters")
    return key


def fingerprint_of(request: Asked) -> bytes:
    """The hash of method, path, query and body: equal for repeated requests."""
    parts = (request.method, request.url.path, request.url.query)
    return sha256("\n".join(parts).encode() + b"\n" + getattr(request.state, "body", b"")).digest()


async def reserve(conn: psycopg.AsyncConnection[Any], request: Asked, actor: str, key: str) -> Stored | None:
    """Reserve the key. None: run the action. Otherwise the stored response. Call it first in the transaction of the action."""
    parameters = {"actor": actor, "key": key, "fingerprint": fingerprint_of(request), "kept": KEPT}
    try:
        if await (await conn.execute(RESERVE, parameters)).fetchone() is not None:
            return None
    except psycopg.errors.LockNotAvailable:
        raise Problem("idempotency-in-progress", "the first request with this key has not ended yet", headers=SOON) from None
    async with conn.cursor(row_factory=class_row(Stored)) as cursor:
        await cursor.execute(FIND, parameters)
        found = await cursor.fetchone()
    assert found is not None, "the row existed, and expired rows are kept for another hour"
    if bytes(found.fingerprint) != parameters["fingerprint"]:
        raise Problem("idempotency-mismatch", "this Idempotency-Key was used for another request; use a new one")
    return found


async def store(conn: psycopg.AsyncConnection[Any], actor: str, key: str, answer: Answer, data: Any) -> None:
    """Store the response. Call it last in the transaction of the action."""
    parameters = {
        "actor": actor,
        "key": key,
        "status": answer.status,
        "headers": AsJson(dict(answer.headers)),
        "body": AsJson({"data": data}),
    }
    await conn.execute(STORE, parameters)
    await conn.execute(FORGET)
