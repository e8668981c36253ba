"""`ingestion.api_ingest`: the pages of an HTTP API become data entries, from the cursor where the last job ended.

Rows and cursor commit together, so a page is loaded once. A job reads some pages; if there are more, the next job follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Done, Fail
from holdfast.services.ingestion.jobs.csv_ingest import chain, entries_target
from holdfast.services.ingestion.jobs.flow import NICE, Target, ingest_rows
from holdfast.services.ingestion.loading import cursors
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.loading.entries import Mode
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.store import KnownType
from holdfast.services.ingestion.scope import slot_of
from holdfast.services.ingestion.setup import Ingestion, ingestion_here
from holdfast.services.ingestion.sources.csv_chunks import open_csv
from holdfast.services.ingestion.sources.dialect import Dialect
from holdfast.services.ingestion.sources.pages import PagedApi, SourceRefused, refuse_other_origin, write_rows
from holdfast.services.ingestion.staging.validate import Layout
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]
PAGES = 50  # of one job


def slot(model: str, module: str, det: str, year: int) -> str:
    return slot_of("api_ingest", model=model, module=module, det=det, year=year)


@job("ingestion.api_ingest", public=False, run_in="process", nice=NICE, extra="ingestion", slot=slot)
async def api_ingest(
    ctx: Context,
    model: str,
    module: str,
    det: str,
    year: int,
    model_version: int | None = None,
    mode: Mode = "upsert",
    policy: ErrorPolicy | None = None,
) -> Done | Fail:
    """Ingest the next pages of an API."""
    here = ingestion_here()
    async with ctx.connection() as conn:
        known = store.one_type(await store.types_of(conn, model, model_version), module, det)
        begin = await cursors.read(conn, known.det_id, year)
    if known.det.api is None:
        raise SourceRefused(f"{module}/{det} has no `api` in the data model")
    refuse_other_origin(known.det.api, here.api_origins)
    again = api_ingest.new(
        model=model, module=module, det=det, year=year, model_version=model_version, mode=mode, policy=policy
    )
    with TemporaryDirectory(prefix="holdfast-api-", dir=here.stores.scratch) as folder:
        file = Path(folder) / "rows.csv"
        cursor, is_end, pages, rows = await _read(ctx, here, known, year, begin, file)
        if not rows:
            return Done({"result": "SUCCESS", "message": "no new rows", "rows_read": 0, "rows_loaded": 0, "pages": pages})
        target = entries_target(known, year, ctx.job.id, mode=mode, policy=policy)
        target = _with_cursor(target, known, year, cursor, pages, None if is_end else again)
        async with here.store() as kept:
            return await ingest_rows(ctx, here, kept, open_csv(file, Dialect("utf-8", ",", '"', ".")), target)


async def _read(
    ctx: Context, here: Ingestion, known: KnownType, year: int, cursor: str | None, file: Path
) -> tuple[str | None, bool, int, int]:
    """Write the rows of the next pages to a file; where the next read begins, whether there are no more pages now, and the
    numbers of pages and rows. The last page has no next cursor: it is read again the next time, for rows that it gets later."""
    assert known.det.api is not None
    header = [column.name for column in known.det.columns]
    pages = rows = 0
    async with PagedApi(known.det.api, year, here.api_token) as api:
        while pages < PAGES:
            page = await api.page(cursor)
            write_rows(file, header, page.rows)
            pages, rows = pages + 1, rows + len(page.rows)
            await ctx.progress(message=f"page {pages}: {rows:,} rows")
            if page.next_cursor is None:
                return cursor, True, pages, rows
            cursor = page.next_cursor
    return cursor, False, pages, rows


def _with_cursor(target: Target, known: KnownType, year: int, cursor: str | None, pages: int, again: NewJob | None) -> Target:
    """The target, with the cursor in the transaction of the load, and with the job of the next pages."""

    async def begin(conn: Conn, layout: Layout) -> None:
        await target.begin(conn, layout)
        await cursors.move(conn, known.det_id, year, cursor=cursor, pages=pages)

    async def follow(conn: Conn, layout: Layout) -> tuple[Sequence[NewJob], NewJob | None]:
        return ([again], None) if again is not None else chain([known], year)

    return replace(target, begin=begin, follow=follow)
