"""The engine writes the files by itself (UNLOAD, CTAS): submit, and ask from time to time. No worker slot is held meanwhile.

The query stands in the ledger, under its tag, before it is sent. So one whose fate nobody knows is looked for before anything
is sent again, and one that nobody needs is stopped.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Json
from holdfast.jobs.outcome import Done, Fail, Retry, Submitted
from holdfast.services.exports.engines.port import EngineError, FunctionMissing, Look, Phase, Query, Submits
from holdfast.services.exports.export.declared import widenings
from holdfast.services.exports.export.direct import PREFIX_EFFECT, planned_prefix
from holdfast.services.exports.export.payload import ExportSpec
from holdfast.services.exports.export.query import query_of
from holdfast.services.exports.extras import loaded
from holdfast.services.exports.mappings.dry_run import LONGEST_LOOK
from holdfast.services.exports.setup import engines_here
from holdfast.services.exports.stores.paths import location_of
from holdfast.services.exports.stores.port import Found, Store
from holdfast.telemetry.log import log
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner
from holdfast.worker.threads import in_thread

QUERY_EFFECT = "export.query"
TABLE_EFFECT = "export.table"
SOON = timedelta(milliseconds=100)
FORGET_LOOKS, FORGET_PAUSE = 120, 0.5
FOOTER = 64 * 1024  # bytes: that of most files is within

Opening = Callable[[], AbstractAsyncContextManager[Store]]  # costs tens of milliseconds for a bucket: not for every look


class NothingWritten(Exception):
    """The engine is done and has written no file: the result is empty."""


# ---------------------------------------------------------------------------------------------------------------------
# Submitting
# ---------------------------------------------------------------------------------------------------------------------


async def begin(ctx: Context, engine: Submits, store: Store, spec: ExportSpec, runtime: str) -> Submitted:
    """Adopt what an earlier attempt submitted, or submit. `FunctionMissing` if the engine cannot run it this way."""
    found = await _adopted(ctx, engine, spec)
    if found is not None:
        return Submitted(found, SOON)
    casts = await _casts(ctx, engine, spec)
    async with planned_prefix(ctx, store) as prefix:
        place = location_of(spec.location).below(prefix).url
        detail = _detail(spec, runtime, prefix)
        async with ctx.effect(QUERY_EFFECT, detail=detail, adoptable=True) as planned:
            query = query_of(spec, planned.tag, casts)
            if runtime == "ctas":
                await _plan_table(ctx, planned.tag, detail)
            statement = _statement(engine, query, place, runtime)
            submitted = await engine.submit(replace(query, sql=statement))
            planned.made(submitted)
    # One look at once: what the engine refuses, it refuses here, and another way can be taken within this attempt.
    seen = await engine.look(submitted, query)
    if seen.phase is Phase.FAILED and isinstance(seen.error, FunctionMissing):
        raise seen.error
    return Submitted(handle_of(seen.handle, planned.tag, prefix, runtime), None)


async def _casts(ctx: Context, engine: Submits, spec: ExportSpec) -> dict[str, str]:
    """The engine writes what it has, so it is asked first: a column that is no longer as declared would go out as it is.

    One whose queue is long is not waited for: this job holds a lane, and only what is submitted holds none.
    """
    try:
        async with asyncio.timeout(LONGEST_LOOK) as look:
            columns = await engine.describe(query_of(spec, f"columns-{ctx.attempt_id}"))
    except TimeoutError:
        if not look.expired():
            raise
        log.warning("export_types_not_checked", job_id=ctx.job.id, entity=spec.entity_name, engine=spec.engine)
        return {}
    return widenings(spec.columns, columns)


async def _plan_table(ctx: Context, tag: str, detail: dict[str, Any]) -> None:
    """The table that CTAS makes is let go of however the job ends; its files stay."""
    async with ctx.effect(TABLE_EFFECT, tag=f"{tag}-table", detail={**detail, "tag": tag}, temporary=True, adoptable=True):
        pass


async def _adopted(ctx: Context, engine: Submits, spec: ExportSpec) -> Json | None:
    """The handle of what an earlier attempt submitted, if the engine has it and it did not fail; its files are ours with it."""
    left = await ctx.left_behind()
    for effect in left:
        if effect.kind != QUERY_EFFECT:
            continue
        query = query_of(spec, effect.tag)
        found = effect.handle if effect.handle is not None else await engine.find(effect.tag, query)
        if found is None:
            continue
        seen = await engine.look(found, query)
        if seen.is_adrift:
            await engine.cancel(found, query)
        elif seen.phase in (Phase.RUNNING, Phase.FINISHED):
            await ctx.adopt(effect, seen.handle)
            for other in left:
                if other.attempt_id == effect.attempt_id and other.kind in (PREFIX_EFFECT, TABLE_EFFECT):
                    await ctx.adopt(other)
            return handle_of(seen.handle, effect.tag, effect.detail["prefix"], effect.detail["runtime"])
    return None


def _statement(engine: Any, query: Query, place: str, runtime: str) -> str:
    return str(engine.ctas_sql(query, place) if runtime == "ctas" else engine.unload_sql(query, place))


def handle_of(query: Json, tag: str, prefix: str, runtime: str) -> dict[str, Json]:
    """What stands on a submitted job, whoever submitted it, so that anybody can ask about it. Pure."""
    return {"query": query, "tag": tag, "prefix": prefix, "runtime": runtime}


def _detail(spec: ExportSpec, runtime: str, prefix: str) -> dict[str, Any]:
    """What is needed to find and stop the query when its job is long over."""
    return {
        "engine": spec.engine,
        "catalog": spec.catalog,
        "schema": spec.schema,
        "role": spec.role,
        "runtime": runtime,
        "prefix": prefix,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Asking
# ---------------------------------------------------------------------------------------------------------------------


async def look(ctx: Context, engine: Submits, opening: Opening, spec: ExportSpec) -> Done | Submitted | Retry | Fail:
    """One look at what the engine does. `NothingWritten` when it is done with nothing."""
    handle = ctx.job.handle
    seen = await engine.look(handle["query"], query_of(spec, handle["tag"]))
    if seen.is_adrift:
        await engine.cancel(seen.handle, query_of(spec, handle["tag"]))
        return Retry("the query's address is lost, so it could not come to its end; it was stopped and is run again")
    if seen.phase is Phase.RUNNING:
        await ctx.progress(seen.progress.share, told(seen))
        return Submitted({**handle, "query": seen.handle}, SOON if seen.soon else None)
    if seen.phase is Phase.FINISHED:
        async with opening() as store:
            return Done(await _written(ctx, store, spec, handle, seen))
    if seen.phase is Phase.GONE:
        return Retry("the engine does not know the query any more; it is run again")
    error = seen.error or EngineError("the engine says that it failed, and not why")
    if isinstance(error, FunctionMissing):
        raise error
    return Retry(str(error)) if error.transient else Fail(f"{error.code}: {error}")


def told(seen: Look) -> str:
    """How far it is, for people. Pure."""
    queued = f", {seen.progress.queued_ahead} ahead" if seen.progress.queued_ahead else ""
    rows = "" if seen.progress.rows is None else f": {seen.progress.rows:,} rows"
    return f"{seen.progress.state.lower()}{queued}{rows}"


async def _written(ctx: Context, store: Store, spec: ExportSpec, handle: dict[str, Any], seen: Look) -> dict[str, Json]:
    """The manifest of what the engine wrote. Rows and bytes come from the files."""
    files = await files_in(store, handle["prefix"])
    if not files:
        raise NothingWritten
    return {
        "to": store.location.url,
        "job_id": ctx.job.id,
        "attempt_id": ctx.attempt_id,
        "runtime": handle["runtime"],
        "rows": sum(one["rows"] for one in files),
        "bytes": sum(one["bytes"] for one in files),
        "files": files,
        "columns": [{"name": one["name"], "type": one["type"], "arrow": ""} for one in spec.columns],
    }


async def files_in(store: Store, prefix: str) -> list[dict[str, Any]]:
    """What an engine wrote to a folder, in order."""
    found = sorted([one async for some in store.list(prefix) for one in some], key=lambda one: one.path)
    return [{"path": one.path, "bytes": one.bytes, "rows": await _rows(store, one)} for one in found if one.bytes]


async def _rows(store: Store, found: Found) -> int:
    """How many rows a file has, by its own footer, and nothing else of it is read."""
    end = await store.get_end(found, FOOTER)
    footer = int.from_bytes(end[-8:-4], "little") + 8  # its length, and the four letters at the very end
    if len(end) < footer <= found.bytes:
        end = await store.get_end(found, footer)
    rows: int = await in_thread(lambda: loaded("pyarrow.parquet").read_metadata(io.BytesIO(end)).num_rows)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Cleaning up
# ---------------------------------------------------------------------------------------------------------------------


def _query(effect: Effect, sql: str = "") -> Query:
    detail = effect.detail
    tag = detail.get("tag", effect.tag)
    return Query(sql, tag, catalog=detail["catalog"], schema=detail["schema"], role=detail["role"])


@cleaner(QUERY_EFFECT)
async def stop_query(effect: Effect) -> bool:
    """Stop a query that nobody waits for; done when the engine surely does nothing for it."""
    engine: Any = engines_here().get(effect.detail["engine"])
    query = _query(effect)
    handle = effect.handle if effect.handle is not None else await engine.find(effect.tag, query)
    if handle is None:
        return True
    await engine.cancel(handle, query)
    return bool((await engine.look(handle, query)).phase is not Phase.RUNNING)


@cleaner(TABLE_EFFECT)
async def forget_table(effect: Effect) -> bool:
    """Let go of the table that CTAS made; its files are not touched."""
    engine: Any = engines_here().get(effect.detail["engine"])
    query = _query(effect)
    handle = await engine.submit(replace(query, sql=engine.forget_sql(query), tag=f"{query.tag}-forget"))
    for _ in range(FORGET_LOOKS):
        seen = await engine.look(handle, query)
        if seen.phase is not Phase.RUNNING:
            return bool(seen.phase is Phase.FINISHED)
        handle = seen.handle
        await asyncio.sleep(FORGET_PAUSE)
    return False
