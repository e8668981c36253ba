"""Kinds as workers have published them: their declarations, and which version is used. Called by: workers when they start, and
code that enqueues without importing the function.

A row stays when its workers stop, so a kind remains known while its workers are scaled to zero. It is removed when no worker
has published it for `KEPT` and no live worker can run it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.database.statements import NO_SCHEMA, not_migrated
from holdfast.errors import KindNotPublished, NotFound
from holdfast.jobs.declare import Declaration, digest_of, from_json, requested_job
from holdfast.jobs.model import Json, NewJob
from holdfast.jobs.payload import refuse_bad_text, to_json
from holdfast.jobs.periodic.publish import publish_schedules
from holdfast.telemetry.lazy_log import log

KEPT: Final = timedelta(days=180)
NEAR = 3  # names that an error suggests

# Workers start often, and most starts change nothing: a row is not written if it is equal, was refreshed today, and is the one
# published last. Rows are written in the order of the key, so that two workers that start at once cannot deadlock.
PUBLISH = """
    INSERT INTO holdfast.kinds AS k (kind, version, declaration, digest, published_at, published_by)
    SELECT said.kind, said.version, said.declaration::jsonb, said.digest, statement_timestamp(), %(worker)s
    FROM unnest(%(kinds)s::text[], %(versions)s::int[], %(declarations)s::text[], %(digests)s::text[])
        AS said(kind, version, declaration, digest)
    WHERE NOT EXISTS (
        SELECT FROM holdfast.kinds same
        WHERE same.kind = said.kind AND same.version = said.version AND same.digest = said.digest
          AND same.published_at > statement_timestamp() - interval '1 day'
          AND NOT EXISTS (SELECT FROM holdfast.kinds other WHERE other.kind = said.kind AND other.version <> said.version
                          AND other.published_at >= same.published_at))
    ORDER BY said.kind, said.version
    ON CONFLICT (kind, version) DO UPDATE
    SET declaration = excluded.declaration, digest = excluded.digest, published_at = excluded.published_at,
        published_by = excluded.published_by,
        replaced_at = CASE WHEN k.digest = excluded.digest THEN k.replaced_at ELSE excluded.published_at END,
        replaced_digest = CASE WHEN k.digest = excluded.digest THEN k.replaced_digest ELSE k.digest END
    RETURNING k.kind, k.version, k.digest, CASE WHEN k.replaced_at = k.published_at THEN k.replaced_digest END
"""


async def publish(conn: psycopg.AsyncConnection[Any], declared: Sequence[Mapping[str, Json]], *, worker: str) -> None:
    """Store the declarations of these kinds, with their schedules. A different declaration of the same version replaces the
    stored one, with a warning in the log."""
    if not declared:
        return
    parameters = {
        "worker": worker,
        "kinds": [one["kind"] for one in declared],
        "versions": [one["version"] for one in declared],
        "declarations": [to_json(one, what="declaration of a kind") for one in declared],
        "digests": [digest_of(one) for one in declared],
    }
    try:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(PUBLISH, parameters)
            written = await cursor.fetchall()
        await publish_schedules(conn, declared, worker=worker)
    except NO_SCHEMA as error:
        raise not_migrated(error) from None
    for kind, version, digest, replaced in written:
        if replaced is not None:
            log.warning("kind_replaced", kind=kind, version=version, digest=digest[:12], replaced=replaced[:12], worker=worker)


# The newest version and the one that was published last: requests get either while no worker is alive.
IS_CURRENT = """
    (k.version = (SELECT max(n.version) FROM holdfast.kinds n WHERE n.kind = k.kind) OR k.version =
     (SELECT l.version FROM holdfast.kinds l WHERE l.kind = k.kind ORDER BY l.published_at DESC, l.version DESC LIMIT 1))"""
STAYS_PRIVATE = f"""
    SELECT k.kind FROM unnest(%(kinds)s::text[], %(versions)s::int[]) AS said(kind, version)
    JOIN holdfast.kinds k ON k.kind = said.kind
    WHERE (k.version = said.version OR {IS_CURRENT}) AND k.declaration ->> 'public' = 'false'
    ORDER BY k.kind LIMIT 1
"""


async def opened_kind(conn: psycopg.AsyncConnection[Any], declared: Sequence[Mapping[str, Json]]) -> str | None:
    """A kind that these declarations would open to requests although it is published with public=False."""
    public = [one for one in declared if one["public"]]
    parameters = {"kinds": [one["kind"] for one in public], "versions": [one["version"] for one in public]}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(STAYS_PRIVATE, parameters)
        row = await cursor.fetchone()
    return None if row is None else str(row[0])


# ---------------------------------------------------------------------------------------------------------------------
# Which declaration is used
# ---------------------------------------------------------------------------------------------------------------------

# The newest version that a live worker can run: after a rollback, a job of a newer version would wait for ever. If no worker is
# alive, the version that was published last. A remote worker may register any version: it does not count for a private kind.
CHOOSE = f"""
    SELECT k.declaration FROM holdfast.kinds k CROSS JOIN (
        SELECT max((w.kinds ->> %(kind)s)::int) AS newest FROM holdfast.workers w
        WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp() AND w.kinds ? %(kind)s
          AND (w.owner IS NULL OR NOT EXISTS (SELECT FROM holdfast.kinds k WHERE k.kind = %(kind)s
                                              AND k.declaration ->> 'public' = 'false' AND {IS_CURRENT}))
    ) AS alive
    WHERE k.kind = %(kind)s
    ORDER BY coalesce(k.version <= alive.newest, false) DESC,
        CASE WHEN k.version <= alive.newest THEN k.version END DESC, k.published_at DESC, k.version DESC
    LIMIT 1
"""
NAMES = "SELECT DISTINCT kind FROM holdfast.kinds ORDER BY kind LIMIT 10000"


async def find(conn: psycopg.AsyncConnection[Any], kind: str) -> Declaration | None:
    """The declaration for new jobs of this kind; None: no worker has published it."""
    refuse_bad_text(kind, "kind")
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(CHOOSE, {"kind": kind})
        row = await cursor.fetchone()
    return None if row is None else from_json(row[0])


async def require(
    conn: psycopg.AsyncConnection[Any], kind: str, *, allow_unknown: bool = False, otherwise: Declaration | None = None
) -> Declaration:
    """The same, or `KindNotPublished` with similar names; `allow_unknown`: defaults instead. `otherwise`: the declaration to
    use if no worker has published one."""
    found = await find(conn, kind) or otherwise
    if found is not None:
        return found
    if allow_unknown:
        return Declaration(kind)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NAMES)
        names = [str(row[0]) for row in await cursor.fetchall()]
    raise KindNotPublished(kind, difflib.get_close_matches(kind, names, n=NEAR))


async def job_by_name(
    conn: psycopg.AsyncConnection[Any],
    kind: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    allow_unknown: bool = False,
    **options: Any,
) -> NewJob:
    """A new job of a kind whose function is not in this process, built from its published declaration; not yet enqueued."""
    declared = await require(conn, kind, allow_unknown=allow_unknown)
    return requested_job(declared, arguments or {}, options)


# ---------------------------------------------------------------------------------------------------------------------
# For people
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """One version of a kind, as its workers have published it."""

    version: int
    declaration: dict[str, Any]
    digest: str
    published_at: datetime  # last, to the day
    published_by: str
    replaced_at: datetime | None  # when a worker replaced a different declaration of the same version
    replaced_digest: str | None
    workers: int  # alive, that can run this version


@dataclass(frozen=True, slots=True)
class PublishedKind:
    """A kind: the version that new jobs use, and every published version, newest first."""

    kind: str
    version: int
    declaration: dict[str, Any]
    versions: list[PublishedVersion]


SHOW = """
    SELECT k.version, k.declaration, k.digest, k.published_at, k.published_by, k.replaced_at, k.replaced_digest,
        (SELECT count(*) FROM holdfast.workers w WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()
         AND (w.kinds ->> k.kind)::int >= k.version) AS workers
    FROM holdfast.kinds k WHERE k.kind = %(kind)s ORDER BY k.version DESC
"""


async def show(conn: psycopg.AsyncConnection[Any], kind: str) -> PublishedKind:
    """A kind and its published versions."""
    counts = await find(conn, kind)
    async with conn.cursor(row_factory=class_row(PublishedVersion)) as cursor:
        await cursor.execute(SHOW, {"kind": kind})
        versions = await cursor.fetchall()
    for one in versions:
        if counts is not None and one.version == counts.version:
            return PublishedKind(kind, one.version, one.declaration, versions)
    raise NotFound(f"no worker has published the kind {kind}; `holdfast kind list` shows the known kinds")


PRUNE = """
    DELETE FROM holdfast.kinds k
    WHERE k.published_at < clock_timestamp() - %(kept)s
      AND NOT EXISTS (SELECT FROM holdfast.workers w WHERE w.lease_until > clock_timestamp() AND w.kinds ? k.kind)
"""


PRUNE_SCHEDULES = """
    DELETE FROM holdfast.periodic_jobs p WHERE NOT EXISTS (SELECT FROM holdfast.kinds k WHERE k.kind = p.kind)
"""


async def prune_kinds(conn: psycopg.AsyncConnection[Any], *, kept: timedelta = KEPT) -> int:
    """Remove kinds, with their schedules, that no worker has published for `kept` and that no live worker can run."""
    removed = (await conn.execute(PRUNE, {"kept": kept})).rowcount
    await conn.execute(PRUNE_SCHEDULES)
    return removed
