"""Limits of a caller: requests per minute, size and nesting of a body, and the length of a page.

Requests are counted in Postgres, one row per principal, so that the limit holds for all processes together, whatever address,
path or token the requests use.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from itertools import accumulate
from typing import Any

import psycopg
from fastapi import Request
from psycopg.rows import tuple_row
from starlette.types import Message

from holdfast.api.plane import ApiOptions, Principal
from holdfast.api.policy import Role
from holdfast.api.problems import Problem

DEEPEST = 100  # levels of a body; a payload may have 64
LARGE = 100_000  # bytes: a larger body is checked in a thread, so that it does not block the event loop
MACHINES = 20  # times the limit of a person

# A token bucket as one timestamp: when it will be full again. A request moves it ahead by its share, at most by a whole bucket.
# By the database's clock, like every decision.
SPEND = """
    INSERT INTO holdfast.rate_limits AS r (key, full_at) VALUES (%(key)s, clock_timestamp() + %(each)s)
    ON CONFLICT (key) DO UPDATE SET full_at = greatest(r.full_at, clock_timestamp()) + %(each)s
    WHERE greatest(r.full_at, clock_timestamp()) + %(each)s <= clock_timestamp() + %(whole)s
    RETURNING key
"""
WAIT = """
    SELECT greatest(1, ceil(extract(epoch FROM full_at + %(each)s - %(whole)s - clock_timestamp())))::int
    FROM holdfast.rate_limits WHERE key = %(key)s
"""


async def spend(conn: psycopg.AsyncConnection[Any], caller: Principal, options: ApiOptions) -> None:
    """Count one request of this principal, or refuse it with the seconds to wait."""
    more = MACHINES if caller.role is Role.WORKER else 1
    each = timedelta(minutes=1) / (options.per_minute * more)
    parameters = {"key": caller.actor, "each": each, "whole": each * options.burst * more}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(SPEND, parameters)
        if await cursor.fetchone() is not None:
            return
        await cursor.execute(WAIT, parameters)
        row = await cursor.fetchone()
    seconds = row[0] if row else 1
    raise Problem(
        "rate-limited",
        f"{caller.actor} sends too many requests; wait {seconds} s",
        headers={"Retry-After": str(seconds)},
        retry_after=seconds,
    )


async def with_bounded_body(request: Request, largest: int) -> Request:
    """The same request with its body read, if it is neither too large nor too deep to be parsed."""
    if request.method in ("GET", "HEAD"):
        return request
    too_large = Problem("too-large", f"the body must have at most {largest:,} bytes", largest=largest)
    length = request.headers.get("content-length", "0")
    if not length.isdigit():
        raise Problem("unreadable", "Content-Length is not a number")
    if int(length) > largest:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise too_large
    found = bytes(body)
    depth = depth_of(found) if len(found) < LARGE else await asyncio.to_thread(depth_of, found)
    if depth > DEEPEST:
        raise Problem("invalid-request", f"the body is nested more than {DEEPEST} levels deep; flatten it")
    request.state.body = found
    return Request(request.scope, _replay(found), request._send)


def _replay(body: bytes) -> Any:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


ESCAPED = re.compile(rb"\\.", re.DOTALL)
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one down, one up
NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def depth_of(body: bytes) -> int:
    """The nesting depth of JSON, without parsing it, because deep nesting could break the parser. Pure.

    Strings and everything except brackets are removed, and the brackets are summed up; all of it runs in C code.
    """
    if body.count(b"{") + body.count(b"[") <= DEEPEST:
        return 0
    unescaped = ESCAPED.sub(b"", body) if b"\\" in body else body
    outside_of_strings = b"".join(unescaped.split(b'"')[::2])
    return max(accumulate(memoryview(outside_of_strings.translate(STEPS, NO_BRACKETS)).cast("b")), default=0)
