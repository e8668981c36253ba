"""`export.run`: one SELECT to Parquet files at one place, on its own. Snapshots have their own kind beside it."""

from __future__ import annotations

from datetime import timedelta

from holdfast.errors import UsageError
from holdfast.jobs.outcome import DEFAULT_POLICY, Backoff, Done, Fail, RetryPolicy, Snooze
from holdfast.services.exports.engines.opening import opened_engine
from holdfast.services.exports.engines.port import EngineError, Query, QueryRefused
from holdfast.services.exports.export.direct import ExportFailed, Limits, export_direct
from holdfast.services.exports.export.payload import RUN_KIND
from holdfast.services.exports.export.publishing import publish_manifest, published_before, publisher
from holdfast.services.exports.export.turns import NoTurn, a_turn
from holdfast.services.exports.mappings.select import reasons_against
from holdfast.services.exports.stores.opening import opened
from holdfast.services.exports.stores.paths import bucket_refused, location_of
from holdfast.services.exports.stores.port import StoreError
from holdfast.settings import settings
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

KIND = RUN_KIND
PATIENT = RetryPolicy(Backoff(first=timedelta(seconds=5)), permanent=DEFAULT_POLICY.permanent)


@job(KIND, retry=PATIENT)
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
    """Write the result of a SELECT to a folder or bucket; it can be seen once the job has completed, and then whole."""
    given = settings()
    dialect = "duckdb" if engine == "duckdb" else "trino"
    for reason in reasons_against(sql, dialect, files=dialect == "duckdb", catalog=catalog):
        return Fail(f"{QueryRefused.code}: {reason}")
    if max_seconds is not None and not max_seconds > 0:
        return Fail(f"max_seconds must be more than 0, not {max_seconds:g}")
    limits = Limits(max_seconds=max_seconds or given.export_max_seconds)
    query = Query(sql, ctx.attempt_id, catalog, schema, role, max_seconds=limits.max_seconds)
    try:
        location = location_of(to)
        outside = bucket_refused(location, given.export_addresses)
        if outside is not None:
            return Fail(outside)
        async with opened(location, given) as store:
            written = await published_before(ctx, store)
            if written is None:
                async with a_turn(ctx), opened_engine(engine, given) as source:
                    written = await export_direct(ctx, source, query, store, limits)
            if not has_database(ctx):  # a remote worker: the store's own fence must do, and a lost end is taken over
                await ctx.checkpoint()
                await publish_manifest(store, written)
                return Done(written.as_json())
        return Done(written.as_json(), publish=publisher(written))
    except NoTurn as busy:
        return busy.snooze
    except (EngineError, StoreError) as error:
        if error.transient:
            raise
        return Fail(said(error))
    except (ExportFailed, UsageError) as failed:  # neither works however often it is tried
        return Fail(str(failed))


def has_database(ctx: Context) -> bool:
    """Whether the end of this job is a transaction of ours."""
    try:
        ctx.connection()
    except UsageError:
        return False
    return True


def said(error: EngineError | StoreError) -> str:
    """Why it failed, with the code that programs look for."""
    return f"{error.code}: {error}"
