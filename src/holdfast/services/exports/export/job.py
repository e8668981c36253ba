"""`exports.export`: one node or edge of a snapshot as Parquet files.

Its result is the manifest. The database copies it to the export's row in the transaction that ends the job, whichever process
ends it (docs/decisions/0013), so a remote worker publishes in the same way as one with a database.
"""

from __future__ import annotations

from functools import partial

from holdfast.engines.port import Engine, FunctionMissing, MissingRole, QueryRefused, submitting
from holdfast.engines.select import reasons_against
from holdfast.jobs.outcome import Done, Fail, Retry, Snooze, Submitted
from holdfast.services.exports.export import server_side
from holdfast.services.exports.export.declared import declared_schema
from holdfast.services.exports.export.direct import Limits, export_direct
from holdfast.services.exports.export.failures import RETRY_POLICY, outcome_of
from holdfast.services.exports.export.payload import KIND, ExportSpec, Runtime
from holdfast.services.exports.export.query import query_of
from holdfast.services.exports.export.turns import a_turn
from holdfast.services.exports.setup import Exports, exports_here
from holdfast.stores.opening import opened_store
from holdfast.stores.paths import location_of
from holdfast.threads import in_thread
from holdfast.worker.context import Context
from holdfast.worker.kinds import job


@job(KIND, retry=RETRY_POLICY, extra="exports", public=False)
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
    return await outcome_of(_export(ctx, exports_here(), spec))


async def _export(ctx: Context, here: Exports, spec: ExportSpec) -> Done | Submitted | Retry | Fail:
    can = here.engines.capabilities(spec.engine)
    if not ctx.job.is_poll:  # the check of mappings again: an earlier version may have stored this one
        check = partial(reasons_against, spec.sql, can.dialect, files=here.files_allowed, catalog=spec.catalog)
        refused = await in_thread(lambda: next(check(), None))
        if refused is not None:
            return Fail(f"{QueryRefused.code}: {refused}")
    if spec.role is None and can.needs_role:
        return Fail(str(MissingRole()))
    return await _run(ctx, here, here.engines.get(spec.engine), spec)


async def _run(ctx: Context, here: Exports, engine: Engine, spec: ExportSpec) -> Done | Submitted | Retry | Fail:
    """Poll a submitted query, or submit one, or stream the rows; stream also if the engine cannot unload."""
    opening = partial(opened_store, location_of(spec.location), here.stores)
    try:
        if ctx.job.is_poll:
            return await server_side.poll(ctx, submitting(engine), opening, spec)
        runtime = chosen(spec.runtime, direct=here.direct, can_submit=engine.capabilities.submits)
        if runtime != "direct":
            async with opening() as store:  # a location that may not be written is refused before the query is submitted
                return await server_side.begin(ctx, submitting(engine), store, spec, runtime)
    except FunctionMissing:
        if spec.runtime != "auto":
            raise
        await ctx.progress(message="the engine cannot unload; the worker streams the rows")
    except server_side.NothingWritten:
        pass  # an engine that unloads no rows writes no file; we write an empty one, with the columns
    limits = Limits(max_seconds=spec.max_seconds)
    async with a_turn(ctx, here.streams), opening() as store:
        query, schema_of = query_of(spec, ctx.attempt_id), declared_schema(spec.columns)
        written = await export_direct(ctx, engine, query, store, limits, schema_of)
    return Done(written.as_json())


def chosen(asked: Runtime, *, direct: bool, can_submit: bool) -> Runtime:
    """The requested runtime; for `auto` direct, unless that is switched off and the engine can unload. Pure."""
    if asked != "auto":
        return asked
    return "direct" if direct or not can_submit else "unload"
