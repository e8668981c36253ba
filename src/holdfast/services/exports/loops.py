"""The periodic loops of exports. Importing this module also registers the cleaners of exports."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop, Result
from holdfast.services.exports import kinds, reconcile
from holdfast.services.exports.catalog import cache, refresh
from holdfast.services.exports.lifecycle import loop as lifecycle
from holdfast.services.exports.settings import ExportsSettings
from holdfast.services.exports.setup import exports_here

assert kinds.KINDS  # their cleaners are called by the loop `effects`


async def refresh_schemas(ctx: Pass) -> Result:
    """Read the catalogs of every configured engine."""
    return await refresh.refresh(ctx, exports_here().engines)


async def schemas_are_missing(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a configured engine has no entries: it is new, or its refresh has failed."""
    return await cache.is_incomplete(conn, exports_here().engines.names)


def loops(settings: ExportsSettings) -> list[Loop]:
    """The loops. `apps/scheduler.py` applies the intervals of the settings."""
    return [
        Loop(
            reconcile.NAME,
            reconcile.reconcile,
            every=reconcile.EVERY,
            is_quiet=True,
            description="Ends exports and snapshots that no worker has ended.",
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
            description="Reads the catalogs of the engines into the schema cache.",
        ),
    ]
