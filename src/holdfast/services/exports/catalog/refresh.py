"""The loop `schema_cache`: read the catalogs of the engines into the schema cache.

If a catalog cannot be read, its entries stay. Only a successful refresh deletes entries.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Final

import psycopg

from holdfast.database.pool import is_permanent
from holdfast.engines.port import Engine, EngineError, Entry
from holdfast.engines.registry import Engines
from holdfast.errors import HoldfastError, UsageError
from holdfast.jobs.config import value_of
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Result
from holdfast.services.exports import measures
from holdfast.services.exports.catalog import cache
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log

NAME: Final = "schema_cache"
EVERY: Final = timedelta(hours=24)


class RefreshFailed(HoldfastError):
    """No catalog could be read and stored."""


async def refresh(ctx: Pass, engines: Engines) -> Result:
    """One pass over every engine."""
    began = time.monotonic()
    good = bad = deleted = 0
    opened = _opened(engines)
    if not opened:
        measures.refreshes.labels("skipped").inc()
        return Result(skipped=1, fields={"status": "skipped"})
    for engine in opened:
        read, failed, gone = await _refresh_engine(ctx, engine)
        good, bad, deleted = good + read, bad + failed, deleted + gone
    measures.refresh_seconds.observe(time.monotonic() - began)
    measures.stale_deleted.inc(deleted)
    measures.refreshes.labels("failed" if bad else "success").inc()
    if bad and not good:
        raise RefreshFailed(f"none of {bad} catalogs could be read and stored; their cached entries were kept")
    return Result(good, bad, fields={"catalogs": good, "catalogs_failed": bad, "stale_deleted": deleted})


def _opened(engines: Engines) -> list[Engine]:
    """The engines that can be opened. Logs the reasons if there are none."""
    found: list[Engine] = []
    reasons = []
    for name in engines.names:
        try:
            found.append(engines.get(name))
        except (UsageError, EngineError) as error:
            reasons.append(f"{name}: {error}")
    if not found:
        log.warning("schema_cache_refresh_skipped", reason="; ".join(reasons) or "no engine is configured")
    return found


async def _refresh_engine(ctx: Pass, engine: Engine) -> tuple[int, int, int]:
    """The number of catalogs that were read, the number that failed, and the number of deleted entries."""
    async with ctx.connection() as conn:
        at, known = await cache.now(conn), await cache.known_catalogs(conn, engine.name)
    deleted = failed = 0
    seen: list[str] = []
    async for catalog, entries, error in _catalogs(engine, known):
        ctx.check()
        if error is not None:
            failed += 1
            await _note_failure(ctx, engine.name, catalog, error, at)
            continue
        assert entries is not None
        try:
            async with ctx.transaction() as conn:
                deleted += await cache.replace(conn, engine.name, catalog, entries, at)
            seen.append(catalog)
        except psycopg.Error as refused:  # such as a name with a NUL character: the other catalogs are still read
            if not is_refused(refused):
                raise
            failed += 1
            await _note_failure(ctx, engine.name, catalog, error_line(refused), at)
    if not failed:
        async with ctx.transaction() as conn:
            ttl = timedelta(hours=await value_of(conn, "cache.metadata.ttl_hours"))
            deleted += await cache.forget_catalogs(conn, engine.name, seen, at, ttl)
    return len(seen), failed, deleted


async def _note_failure(ctx: Pass, engine: str, catalog: str, error: str, at: datetime) -> None:
    log.warning("schema_cache_catalog_failed", engine=engine, catalog=catalog, error=error)
    try:
        async with ctx.transaction() as conn:
            await cache.note_failure(conn, engine, catalog, error, at)
    except psycopg.Error as refused:  # the name of the catalog itself; it stays in the log
        if not is_refused(refused):
            raise


def is_refused(error: psycopg.Error) -> bool:
    """Whether Postgres cannot store these values, now or later. Pure."""
    return isinstance(error, psycopg.DataError) or is_permanent(error)


async def _catalogs(engine: Engine, known: list[str]) -> AsyncIterator[tuple[str, list[Entry] | None, str | None]]:
    """The entries of each catalog, or why it cannot be read. If one fails, the known catalogs are read one by one."""
    done: set[str] = set()
    try:
        async for entries in engine.entries():
            if entries:
                done.add(entries[0].catalog)
                yield entries[0].catalog, entries, None
        return
    except EngineError as error:
        whole = str(error)
    left = [catalog for catalog in known if catalog not in done]
    for catalog in left:
        try:
            found = [entry async for entries in engine.entries((catalog,)) for entry in entries]
        except EngineError as error:
            yield catalog, None, str(error)
        else:
            yield catalog, found, None
    if not left:
        yield "*", None, whole
