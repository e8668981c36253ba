"""Pause and drain one kind or all kinds. Called by: the API and the command line.

Jobs of a paused kind are not claimed. A drained kind accepts no new jobs; existing jobs run to their end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.given import a_kind
from holdfast.jobs.payload import refuse_bad_text, refuse_bad_word

EVERYTHING = "*"

PAUSE = """
    INSERT INTO holdfast.controls (kind, paused_at, reason, actor)
    VALUES (%(kind)s, clock_timestamp(), %(reason)s, %(actor)s)
    ON CONFLICT (kind) DO UPDATE SET paused_at = coalesce(controls.paused_at, excluded.paused_at),
        reason = excluded.reason, actor = excluded.actor
"""
DRAIN = """
    INSERT INTO holdfast.controls (kind, drained_at, reason, actor)
    VALUES (%(kind)s, clock_timestamp(), %(reason)s, %(actor)s)
    ON CONFLICT (kind) DO UPDATE SET drained_at = coalesce(controls.drained_at, excluded.drained_at),
        reason = excluded.reason, actor = excluded.actor
"""
RESUME = """
    WITH resumed AS (DELETE FROM holdfast.controls WHERE kind = %(kind)s RETURNING kind)
    SELECT count(*), pg_notify('holdfast', '') FROM resumed
"""
# Removes one of the two; the row is deleted with the last.
LIFT = """
    WITH lifted AS (
        UPDATE holdfast.controls SET paused_at = CASE WHEN %(paused)s THEN NULL ELSE paused_at END,
            drained_at = CASE WHEN %(paused)s THEN drained_at END
        WHERE kind = %(kind)s AND CASE WHEN %(paused)s THEN paused_at ELSE drained_at END IS NOT NULL RETURNING kind
    )
    SELECT count(*), pg_notify('holdfast', '') FROM lifted
"""
FORGET = "DELETE FROM holdfast.controls WHERE kind = %(kind)s AND paused_at IS NULL AND drained_at IS NULL"
READ = "SELECT kind, paused_at IS NOT NULL, drained_at IS NOT NULL, reason, actor FROM holdfast.controls ORDER BY kind"


class Control(NamedTuple):
    """A kind that is paused or drained."""

    kind: str
    paused: bool
    drained: bool
    reason: str | None
    actor: str | None


async def pause(conn: psycopg.AsyncConnection[Any], kind: str = EVERYTHING, *, actor: str, reason: str | None = None) -> None:
    """Claim no more jobs of this kind until it is resumed."""
    check(kind, actor, reason)
    await conn.execute(PAUSE, {"kind": kind, "actor": actor, "reason": reason})


async def drain(conn: psycopg.AsyncConnection[Any], kind: str = EVERYTHING, *, actor: str, reason: str | None = None) -> None:
    """Accept no new jobs of this kind until it is resumed."""
    check(kind, actor, reason)
    await conn.execute(DRAIN, {"kind": kind, "actor": actor, "reason": reason})


async def resume(conn: psycopg.AsyncConnection[Any], kind: str = EVERYTHING) -> bool:
    """Undo `pause` and `drain`. Returns whether the kind was paused or drained."""
    _check_kind(kind)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RESUME, {"kind": kind})
        row = await cursor.fetchone()
    return row is not None and row[0] > 0


def check(kind: str, actor: str, reason: str | None) -> None:
    """`UsageError` for a kind, an actor or a reason that is not text."""
    _check_kind(kind)
    refuse_bad_word(actor, reason)


def _check_kind(kind: str) -> None:
    a_kind(kind)
    refuse_bad_text(kind, "kind")


async def unpause(conn: psycopg.AsyncConnection[Any], kind: str = EVERYTHING) -> bool:
    """Undo `pause` only. Returns whether the kind was paused."""
    return await _lift(conn, kind, paused=True)


async def undrain(conn: psycopg.AsyncConnection[Any], kind: str = EVERYTHING) -> bool:
    """Undo `drain` only. Returns whether the kind was drained."""
    return await _lift(conn, kind, paused=False)


async def _lift(conn: psycopg.AsyncConnection[Any], kind: str, *, paused: bool) -> bool:
    _check_kind(kind)
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LIFT, {"kind": kind, "paused": paused})
        row = await cursor.fetchone()
        await cursor.execute(FORGET, {"kind": kind})
    return row is not None and row[0] > 0


async def controls(conn: psycopg.AsyncConnection[Any]) -> list[Control]:
    """Everything that is paused or drained."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ)
        return [Control(*row) for row in await cursor.fetchall()]
