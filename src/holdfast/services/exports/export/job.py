"""`exports.export`: one node or edge of a snapshot as Parquet files. Picks the way to run, and says how it ended.

Its result is the manifest: the database takes it onto the export's row in the transaction that ends the job, whoever ends it
(docs/decisions/0013). So a remote worker publishes as well as one with a database.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.errors import UsageError
from holdfast.jobs.outcome import DEFAULT_POLICY, Backoff, Done, Fail, Retry, RetryPolicy, Snooze, Submitted
from holdfast.services.exports.engines.port import Engine, EngineError, FunctionMissing, MissingRole, QueryRefused
from holdfast.services.exports.export import server_side
from holdfast.services.exports.export.declared import declared_schema
from holdfast.services.exports.export.direct import ExportFailed, Limits, export_direct
from holdfast.services.exports.export.payload import KIND, ExportSpec, Runtime
from holdfast.services.exports.export.query import query_of
from holdfast.services.exports.export.turns import NoTurn, a_turn
from holdfast.services.exports.mappings.select import reasons_against
from holdfast.services.exports.setup import engines_here
from holdfast.services.exports.stores.opening import opened
from holdfast.services.exports.stores.paths import location_of
from holdfast.services.exports.stores.port import StoreError
from holdfast.settings import settings
from holdfast.worker.context import Context
from holdfast.worker.kinds import job
from holdfast.worker.threads import in_thread

Ended = Done | Submitted | Snooze | Retry | Fail
PATIENT = RetryPolicy(Backoff(first=timedelta(seconds=5)), permanent=DEFAULT_POLICY.permanent)


@job(KIND, retry=PATIENT, public=False)
async def export(
    ctx: Context,
    job_type: str,
    entity_name: str,
    engine: str,
    sql: str,
    columns: list[dict[str, str]],
    location: str,
    snapshot_id: int | None = None,
    catalog: str | None = None,
    schema: str | None = None,
    role: str | None = None,
    runtime: Runtime = "auto",
    max_seconds: float = 3600.0,
) -> Done | Submitted | Snooze | Retry | Fail:
    """Write the rows of one node or edge as Parquet files."""
    spec = ExportSpec(
        job_type, entity_name, engine, sql, columns, location, snapshot_id, catalog, schema, role, runtime, max_seconds
    )
    engines = engines_here()
    refused = None if ctx.job.is_poll else await in_thread(partial(_reason_against, spec))
    if refused is not None:
        return Fail(f"{QueryRefused.code}: {refused}")
    if role is None and engines.needs_role(engine):
        return Fail(str(MissingRole()))
    try:
        return await _run(ctx, engines.get(engine), partial(opened, location_of(location), settings()), spec)
    except NoTurn as busy:
        return busy.snooze
    except (EngineError, StoreError) as error:
        if error.transient:
            raise
        return Fail(said(error))
    except (ExportFailed, UsageError) as failed:  # neither works however often it is tried
        return Fail(str(failed))


def _reason_against(spec: ExportSpec) -> str | None:
    """Why this SQL may not run: the check of mappings again, for those that were stored by an earlier version."""
    files = settings().mappings_read_files
    return next(reasons_against(spec.sql, spec.engine, files=files, catalog=spec.catalog), None)


async def _run(ctx: Context, engine: Engine, opening: server_side.Opening, spec: ExportSpec) -> Ended:
    """The story: ask about what was submitted, or submit, or stream; and stream when the engine cannot unload."""
    try:
        if ctx.job.is_poll:
            return await server_side.look(ctx, _submitting(engine), opening, spec)
        way = chosen(spec.runtime, direct=settings().direct_export, can_submit=hasattr(engine, "submit"))
        if way != "direct":
            async with opening() as store:  # a place that we may not write to is refused before anything is submitted
                return await server_side.begin(ctx, _submitting(engine), store, spec, way)
    except FunctionMissing:
        if spec.runtime != "auto":
            raise
        await ctx.progress(message="the engine cannot unload; the rows come through the worker")
    except server_side.NothingWritten:
        pass  # an engine that unloads nothing writes no file; we write an empty one, with the columns
    limits = Limits(max_seconds=spec.max_seconds)
    async with a_turn(ctx), opening() as store:
        query, schema_of = query_of(spec, ctx.attempt_id), declared_schema(spec.columns)
        written = await export_direct(ctx, engine, query, store, limits, schema_of)
    return Done(written.as_json())


def chosen(asked: Runtime, *, direct: bool, can_submit: bool) -> Runtime:
    """Which way to run: what was asked for; else through the worker, unless that is switched off. Pure."""
    if asked != "auto":
        return asked
    return "direct" if direct or not can_submit else "unload"


def _submitting(engine: Engine) -> Any:
    if not hasattr(engine, "submit"):
        raise ExportFailed(f"{engine.name} does nothing by itself; use the runtime direct")
    return engine


def said(error: EngineError | StoreError) -> str:
    """Why it failed, with the code that programs look for. A missing role is said in the words of the documents."""
    return str(error) if isinstance(error, MissingRole) else f"{error.code}: {error}"
