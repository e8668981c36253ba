"""What the kinds that read rows have in common: stage them, validate them, judge the file, and load the good rows.

Data and the end of the job commit in one transaction, through `Done(prepare=…)`. The rows are loaded in
parts, and progress is reported from another connection meanwhile. An attempt that is killed before the commit leaves staging
tables and nothing else; what a replaced attempt has loaded is rolled back, because the end of its job is fenced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.errors import HoldfastError
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Done, Fail
from holdfast.services.ingestion import measures
from holdfast.services.ingestion.jobs import report
from holdfast.services.ingestion.jobs.memory import peak_memory
from holdfast.services.ingestion.jobs.progress import with_progress
from holdfast.services.ingestion.loading.accept import ErrorPolicy, Result, Verdict, judge
from holdfast.services.ingestion.loading.bulk import bulk
from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.setup import Ingestion, ingestion_here
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.sources.dialect import Dialect
from holdfast.services.ingestion.sources.opening import Rows, open_rows
from holdfast.services.ingestion.staging import errors, tables
from holdfast.services.ingestion.staging.columns import match
from holdfast.services.ingestion.staging.tables import Staging
from holdfast.services.ingestion.staging.validate import Counts, Layout, validate
from holdfast.stores.port import Store
from holdfast.telemetry.log import log
from holdfast.threads import in_thread
from holdfast.worker.context import Context

Conn = psycopg.AsyncConnection[Any]
NICE = 10  # of the processes that read files: the routes of an application on the same machine come first
LOADED_AT_ONCE = 100_000  # rows of one statement: their sort fits into the memory of the session


class LoadedOtherwise(HoldfastError):
    """The load wrote another number of rows than were validated. Nothing is committed, and the attempt fails."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to do with the rows of a file: the columns they must have, and the load of the good ones."""

    columns: tuple[Column, ...]
    # In the transaction that ends the job. `begin` is called once with all rows, `load` for each part; the number of its rows.
    begin: Callable[[Conn, Layout], Awaitable[None]]
    load: Callable[[Conn, Layout], Awaitable[int]]
    key: tuple[str, ...] = ()
    existing: str | None = None  # a query of keys that no row may have
    year: int | None = None  # of the rows
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    dry_run: bool = False
    # The jobs that follow, known when the rows are validated: children, and the one that waits for all of them.
    follow: Callable[[Conn, Layout], Awaitable[tuple[Sequence[NewJob], NewJob | None]]] | None = None


async def ingest_file(ctx: Context, file_id: int, dialect: dict[str, str | None] | None, target: Target) -> Done | Fail:
    """Ingest a file of the store."""
    here = ingestion_here()
    async with ctx.connection() as conn:
        file = await files.get(conn, file_id)
    async with here.store() as store:
        local = await store.local_copy(file.path)
        rows = await in_thread(open_rows, local, Dialect(**(dialect or {})))
        return await ingest_rows(ctx, here, store, rows, target)


async def ingest_rows(ctx: Context, here: Ingestion, store: Store, rows: Rows, target: Target) -> Done | Fail:
    """Stage, validate, judge, load."""
    matched = match(rows.header, target.columns)
    is_corrected = set(errors.ADDED) <= set(rows.header)
    staging = Staging(ctx.job.id, ctx.fence_token, len(rows.header), is_corrected=is_corrected)
    key = tuple(name for name in target.key if name in matched.places)
    layout = Layout(staging, target.columns, matched, key, rows.dialect.decimal or ".", target.year)
    await ctx.checkpoint()
    async with ctx.connection() as conn, tables.dropped_on_error(conn, staging):
        await with_progress(
            ctx, tables.fill(conn, staging, rows), lambda: (0.6 * rows.read / max(rows.size, 1), "reading rows")
        )
        crashpoint("ingest.staged")
        layout = replace(layout, staging=replace(staging, is_trimmed=rows.is_trimmed))
        counts = await with_progress(ctx, validate(conn, layout, existing=target.existing), lambda: (0.6, "validating rows"))
        layout = replace(layout, has_errors=counts.bad > 0)
        first = await errors.first_of(conn, staging)
        verdict = judge(counts, target.policy, first, dry_run=target.dry_run)
        outcome = outcome_of(counts, rows, layout, verdict) | {"peak_memory_bytes": peak_memory()}
        if counts.bad:
            await ctx.checkpoint()
            await errors.keep(conn, staging, here.most_errors)
            outcome["bad_rows"] = await errors.write_bad_rows(conn, staging, rows.header, store)
        await report.note(conn, ctx.job, verdict.message, outcome)
        crashpoint("ingest.validated")
        count_rows(ctx, counts, verdict)
        if verdict.result is Result.ERROR or target.dry_run:
            await conn.execute(tables.drop_statement(staging))
            return Fail(verdict.message) if verdict.result is Result.ERROR else Done(outcome)
        then, join = ((), None) if target.follow is None else await target.follow(conn, layout)
    await ctx.progress(0.7, f"loading {counts.good:,} rows")
    return Done(outcome, prepare=loader(ctx, target, layout, counts), then=then, join=join)


def loader(ctx: Context, target: Target, layout: Layout, counts: Counts) -> Callable[[Conn], Coroutine[Any, Any, None]]:
    """The load, for the transaction that ends the job."""
    loaded = 0

    async def load(conn: Conn) -> None:
        nonlocal loaded
        loaded = 0  # the end may be tried again
        await target.begin(conn, layout)
        for part in await tables.parts_of(conn, layout.staging, counts.read, LOADED_AT_ONCE):
            loaded += await target.load(conn, replace(layout, staging=part))

    async def prepare(conn: Conn) -> None:
        def so_far() -> tuple[float, str]:
            return 0.7 + 0.3 * loaded / counts.good, f"loading rows: {loaded:,} of {counts.good:,}"

        async with bulk(conn):
            await with_progress(ctx, load(conn), so_far)
        if loaded != counts.good:
            raise LoadedOtherwise(f"{loaded:,} rows were loaded, but {counts.good:,} were validated; nothing is committed")
        await conn.execute(tables.drop_statement(layout.staging))
        crashpoint("ingest.in_tx_loaded")

    return prepare


def outcome_of(counts: Counts, rows: Rows, layout: Layout, verdict: Verdict) -> dict[str, Any]:
    """What the job reports. Pure."""
    return {
        "result": verdict.result.value,
        "message": verdict.message,
        "rows_read": counts.read,
        "rows_loaded": 0 if verdict.result is Result.ERROR else counts.good,
        "rows_skipped": counts.bad,
        "dialect": rows.dialect.as_json(),
        "columns": sorted(layout.matched.places),
        "ignored_columns": list(layout.matched.ignored),
    }


def count_rows(ctx: Context, counts: Counts, verdict: Verdict) -> None:
    measures.rows.labels("good").inc(counts.good)
    measures.rows.labels("bad").inc(counts.bad)
    log.info("ingestion_rows_judged", job_id=ctx.job.id, good=counts.good, bad=counts.bad, result=verdict.result.value)
