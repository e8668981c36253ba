"""The engine writes the files itself (UNLOAD, CTAS): submit the query and poll it. No worker lane is held meanwhile.

The query is recorded in the effects ledger under its tag before it is sent. If the answer is lost, the query is looked up by
its tag before another one is submitted; a query that is no longer needed is stopped.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.engines.port import EngineError, FunctionMissing, Phase, Query, QueryStatus, SubmittingEngine, submitting
from holdfast.extras import loaded
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Json
from holdfast.jobs.outcome import Done, Fail, Retry, Submitted
from holdfast.services.exports.export.declared import widenings
from holdfast.services.exports.export.direct import PREFIX_EFFECT, planned_prefix
from holdfast.services.exports.export.payload import ExportSpec
from holdfast.services.exports.export.query import query_of
from holdfast.services.exports.limits import DESCRIBE_SECONDS
from holdfast.services.exports.setup import exports_here
from holdfast.stores.paths import location_of
from holdfast.stores.port import Found, Store
from holdfast.telemetry.log import log
from holdfast.threads import in_thread
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner

QUERY_EFFECT = "export.query"
TABLE_EFFECT = "export.table"
SOON = timedelta(milliseconds=100)
FORGET_POLLS, FORGET_PAUSE = 120, 0.5
FOOTER = 64 * 1024  # bytes; most footers are shorter

Opening = Callable[[], AbstractAsyncContextManager[Store]]  # opening a bucket takes tens of milliseconds: not for every poll


class NothingWritten(Exception):
    """The engine has finished and written no file: the result is empty."""


# ---------------------------------------------------------------------------------------------------------------------
# Submitting
# ---------------------------------------------------------------------------------------------------------------------


async def begin(ctx: Context, engine: SubmittingEngine, store: Store, spec: ExportSpec, runtime: str) -> Submitted:
    """Adopt the query of an earlier attempt, or submit one. `FunctionMissing` if the engine does not have the function."""
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
    # Poll once at once: the engine rejects a statement here, and the same attempt can use another runtime.
    seen = await engine.poll(submitted, query)
    if seen.phase is Phase.FAILED and isinstance(seen.error, FunctionMissing):
        raise seen.error
    return Submitted(handle_of(seen.handle, planned.tag, prefix, runtime), None)


async def _casts(ctx: Context, engine: SubmittingEngine, spec: ExportSpec) -> dict[str, str]:
    """The casts of columns that are narrower than declared. The engine writes its own types, so they are compared first.

    If the engine is too busy to describe the query in time, the types are not checked: this job holds a lane until it is
    submitted.
    """
    try:
        async with asyncio.timeout(DESCRIBE_SECONDS) as limit:
            columns = await engine.describe(query_of(spec, f"columns-{ctx.attempt_id}"))
    except TimeoutError:
        if not limit.expired():
            raise
        log.warning("export_types_not_checked", job_id=ctx.job.id, entity=spec.entity_name, engine=spec.engine)
        return {}
    return widenings(spec.columns, columns)


async def _plan_table(ctx: Context, tag: str, detail: dict[str, Any]) -> None:
    """Record the table that CTAS creates. It is dropped however the job ends; its files stay."""
    async with ctx.effect(TABLE_EFFECT, tag=f"{tag}-table", detail={**detail, "tag": tag}, temporary=True, adoptable=True):
        pass


async def _adopted(ctx: Context, engine: SubmittingEngine, spec: ExportSpec) -> Json | None:
    """The handle of a query of an earlier attempt that runs or has finished. Its files are adopted with it."""
    left = await ctx.left_behind()
    for effect in left:
        if effect.kind != QUERY_EFFECT:
            continue
        query = query_of(spec, effect.tag)
        found = effect.handle if effect.handle is not None else await engine.find(effect.tag, query)
        if found is None:
            continue
        seen = await engine.poll(found, query)
        if seen.is_detached:
            await engine.cancel(found, query)
        elif seen.phase in (Phase.RUNNING, Phase.FINISHED):
            await ctx.adopt(effect, seen.handle)
            for other in left:
                if other.attempt_id == effect.attempt_id and other.kind in (PREFIX_EFFECT, TABLE_EFFECT):
                    await ctx.adopt(other)
            return handle_of(seen.handle, effect.tag, effect.detail["prefix"], effect.detail["runtime"])
    return None


def _statement(engine: SubmittingEngine, query: Query, place: str, runtime: str) -> str:
    return engine.ctas_sql(query, place) if runtime == "ctas" else engine.unload_sql(query, place)


def handle_of(query: Json, tag: str, prefix: str, runtime: str) -> dict[str, Json]:
    """The handle of a submitted job. Any worker can poll the query with it. Pure."""
    return {"query": query, "tag": tag, "prefix": prefix, "runtime": runtime}


def _detail(spec: ExportSpec, runtime: str, prefix: str) -> dict[str, Any]:
    """What is needed to find and stop the query after its job has ended."""
    return {
        "engine": spec.engine,
        "catalog": spec.catalog,
        "schema": spec.schema,
        "role": spec.role,
        "runtime": runtime,
        "prefix": prefix,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Polling
# ---------------------------------------------------------------------------------------------------------------------


async def poll(ctx: Context, engine: SubmittingEngine, opening: Opening, spec: ExportSpec) -> Done | Submitted | Retry | Fail:
    """Poll the query once. `NothingWritten` if it has finished without a file."""
    handle = ctx.job.handle
    seen = await engine.poll(handle["query"], query_of(spec, handle["tag"]))
    if seen.is_detached:
        await engine.cancel(seen.handle, query_of(spec, handle["tag"]))
        return Retry("the address of the query was lost, so it could not finish; it was cancelled and runs again")
    if seen.phase is Phase.RUNNING:
        await ctx.progress(seen.progress.share, progress_message(seen))
        return Submitted({**handle, "query": seen.handle}, SOON if seen.poll_soon else None)
    if seen.phase is Phase.FINISHED:
        async with opening() as store:
            return Done(await _written(ctx, store, spec, handle, seen))
    if seen.phase is Phase.GONE:
        return Retry("the engine no longer knows the query; it runs again")
    error = seen.error or EngineError("the engine reported a failure without a reason")
    if isinstance(error, FunctionMissing):
        raise error
    return Retry(str(error)) if error.transient else Fail(f"{error.code}: {error}")


def progress_message(seen: QueryStatus) -> str:
    """The progress for people. Pure."""
    queued = f", {seen.progress.queued_ahead} ahead" if seen.progress.queued_ahead else ""
    rows = "" if seen.progress.rows is None else f": {seen.progress.rows:,} rows"
    return f"{seen.progress.state.lower()}{queued}{rows}"


async def _written(ctx: Context, store: Store, spec: ExportSpec, handle: dict[str, Any], seen: QueryStatus) -> dict[str, Json]:
    """The manifest of the files that the engine wrote. Rows and bytes come from the files."""
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
    """The files that an engine wrote to a folder, in order."""
    found = sorted([one async for some in store.list(prefix) for one in some], key=lambda one: one.path)
    return [{"path": one.path, "bytes": one.bytes, "rows": await _rows(store, one)} for one in found if one.bytes]


async def _rows(store: Store, found: Found) -> int:
    """The number of rows of a file. Only its footer is read."""
    end = await store.get_end(found, FOOTER)
    footer = int.from_bytes(end[-8:-4], "little") + 8  # its length, and the magic bytes at the end
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
    """Stop a query whose job has ended. True once the engine certainly does not run it."""
    engine = submitting(exports_here().engines.get(effect.detail["engine"]))
    query = _query(effect)
    handle = effect.handle if effect.handle is not None else await engine.find(effect.tag, query)
    if handle is None:
        return True
    await engine.cancel(handle, query)
    return (await engine.poll(handle, query)).phase is not Phase.RUNNING


@cleaner(TABLE_EFFECT)
async def forget_table(effect: Effect) -> bool:
    """Drop the table that CTAS created. Its files stay."""
    engine = submitting(exports_here().engines.get(effect.detail["engine"]))
    query = _query(effect)
    handle = await engine.submit(replace(query, sql=engine.forget_sql(query), tag=f"{query.tag}-forget"))
    for _ in range(FORGET_POLLS):
        seen = await engine.poll(handle, query)
        if seen.phase is not Phase.RUNNING:
            return seen.phase is Phase.FINISHED
        handle = seen.handle
        await asyncio.sleep(FORGET_PAUSE)
    return False
