"""`exports.run`: the result of one SELECT as Parquet files at one place. The only kind of exports that users may enqueue."""

from __future__ import annotations

from holdfast.engines.port import Query, QueryRefused
from holdfast.engines.registry import capabilities_of, opened_engine
from holdfast.engines.select import reasons_against
from holdfast.errors import UsageError
from holdfast.jobs.config import value_of
from holdfast.jobs.config_keys import KEYS
from holdfast.jobs.outcome import Done, Fail, Snooze
from holdfast.services.exports.export.direct import Limits, export_direct
from holdfast.services.exports.export.failures import RETRY_POLICY, outcome_of
from holdfast.services.exports.export.payload import RUN_KIND
from holdfast.services.exports.export.publishing import publish_manifest, published_before, publisher
from holdfast.services.exports.export.turns import a_turn
from holdfast.services.exports.limits import MAX_DURATION
from holdfast.services.exports.setup import Exports, exports_here
from holdfast.stores.opening import opened_store
from holdfast.stores.paths import bucket_refused, location_of
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

KIND = RUN_KIND


@job(KIND, retry=RETRY_POLICY, extra="exports", public=True)
async def run(
    ctx: Context,
    sql: str,
    to: str,
    engine: str = "duckdb",
    catalog: str | None = None,
    schema: str | None = None,
    role: str | None = None,
    max_seconds: float | None = None,
) -> Done | Fail | Snooze:
    """Write the result of a SELECT to a folder or bucket. It becomes visible, as a whole, when the job completes."""
    here = exports_here()
    if max_seconds is not None and not max_seconds > 0:
        return Fail(f"max_seconds must be positive, not {max_seconds:g}")
    limits = Limits(max_seconds=max_seconds or await configured_seconds(ctx))
    query = Query(sql, ctx.attempt_id, catalog, schema, role, max_seconds=limits.max_seconds)
    return await outcome_of(_run(ctx, here, engine, query, to, limits))


async def _run(ctx: Context, here: Exports, engine: str, query: Query, to: str, limits: Limits) -> Done | Fail:
    can = capabilities_of(engine, here.run_engines)
    for reason in reasons_against(query.sql, can.dialect, files=can.reads_files, catalog=query.catalog):
        return Fail(f"{QueryRefused.code}: {reason}")
    location = location_of(to)
    refused = bucket_refused(location, here.addresses)
    if refused is not None:
        return Fail(refused)
    async with opened_store(location, here.stores) as store:
        written = await published_before(ctx, store)
        if written is None:
            async with a_turn(ctx, here.streams), opened_engine(engine, here.run_engines) as source:
                written = await export_direct(ctx, source, query, store, limits)
        if not has_database(ctx):  # a remote worker publishes before the finish; if that is lost, the next attempt adopts it
            await ctx.checkpoint()
            await publish_manifest(store, written)
            return Done(written.as_json())
    return Done(written.as_json(), publish=publisher(written, here.stores))


async def configured_seconds(ctx: Context) -> float:
    """How long an export may take: `export.max_duration_seconds`, as for snapshots.

    A remote worker cannot read the runtime configuration and uses the default of that key.
    """
    if not has_database(ctx):
        return float(KEYS[MAX_DURATION].default)
    async with ctx.connection() as conn:
        return float(await value_of(conn, MAX_DURATION))


def has_database(ctx: Context) -> bool:
    """Whether the worker has connections to the database. A remote worker has none."""
    try:
        ctx.connection()
    except UsageError:
        return False
    return True
