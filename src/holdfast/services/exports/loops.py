"""The periodic loops of exports, and what they share. Importing this registers the cleaners, too."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop, Result
from holdfast.services.exports import kinds, reconcile
from holdfast.services.exports.catalog import cache, refresh
from holdfast.services.exports.lifecycle import loop as lifecycle
from holdfast.services.exports.setup import engines_here
from holdfast.settings import Settings

assert kinds.KINDS  # their cleaners are called by the loop `effects`


async def refresh_schemas(ctx: Pass) -> Result:
    """Read the catalogs of every engine that is set up."""
    return await refresh.refresh(ctx, engines_here())


async def schemas_are_missing(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether an engine that is set up has no entry: never refreshed, its refresh failed, or it was set up later."""
    return await cache.is_incomplete(conn, engines_here().names)


def loops(settings: Settings) -> list[Loop]:
    """The loops; the settings' own intervals come later (`apps/scheduler.py`)."""
    return [
        Loop(
            reconcile.NAME,
            reconcile.reconcile,
            every=reconcile.EVERY,
            is_quiet=True,
            description="Ends exports and snapshots that nobody else brought to their end.",
        ),
        Loop(
            lifecycle.NAME,
            lifecycle.enforce,
            every=lifecycle.EVERY,
            description="Deletes snapshots and mappings whose TTL or inactivity timeout is over.",
        ),
        Loop(
            refresh.NAME,
            refresh_schemas,
            every=refresh.EVERY,
            first_run="at_once",
            is_needed=schemas_are_missing,
            description="Reads what the engines' catalogs hold.",
        ),
    ]
