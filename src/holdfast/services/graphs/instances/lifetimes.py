"""The TTL and inactivity timeout of an instance: the defaults and the maximum. Called by: create, change."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg

from holdfast.errors import UsageError
from holdfast.jobs.config import value_of
from holdfast.services.graphs import limits
from holdfast.services.graphs.durations import parse, written

Conn = psycopg.AsyncConnection[Any]


class TooLong(UsageError):
    """A TTL is longer than the maximum."""

    def __init__(self, length: timedelta, most: timedelta) -> None:
        super().__init__(
            f"a TTL of {written(length)} is longer than the maximum of {written(most)} ({limits.MAX_TTL}); choose a shorter one"
        )


async def chosen(conn: Conn, ttl: str | None, inactivity_timeout: str | None) -> tuple[str, str]:
    """The TTL and inactivity timeout to store: those that were asked for, or the defaults."""
    default_ttl = written(timedelta(minutes=await value_of(conn, limits.DEFAULT_TTL)))
    default_inactivity = written(timedelta(minutes=await value_of(conn, limits.DEFAULT_INACTIVITY)))
    if ttl is not None:
        await refuse_too_long(conn, parse(ttl))
    return ttl or default_ttl, inactivity_timeout or default_inactivity


async def refuse_too_long(conn: Conn, length: timedelta) -> None:
    """Refuse a TTL that is longer than the maximum."""
    most = timedelta(minutes=await value_of(conn, limits.MAX_TTL))
    if length > most:
        raise TooLong(length, most)


def extended(created_at: datetime, expires_at: datetime | None, now: datetime, by: timedelta) -> timedelta:
    """The TTL of an instance that lives so much longer: from its end, or from now if it has none or is over. Pure."""
    return max(expires_at or now, now) + by - created_at
