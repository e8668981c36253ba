"""One pass of the loop `lifecycle`: snapshots first, then mappings. Read, decide, delete; each item separately."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

import psycopg
from prometheus_client import Counter

from holdfast.errors import TermLost
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Result
from holdfast.services.exports import measures
from holdfast.services.exports.lifecycle import mappings, snapshots
from holdfast.services.exports.lifecycle.decide import ExpiryReason, Life, Verdict, decide, invalid_durations, refuse_too_many
from holdfast.services.exports.lifecycle.delete import delete_mapping, delete_snapshot
from holdfast.telemetry.log import log

NAME: Final = "lifecycle"
EVERY: Final = timedelta(seconds=300)
PAGE: Final = 100


class ReadPage(Protocol):
    def __call__(self, conn: psycopg.AsyncConnection[Any], *, after: int, limit: int) -> Awaitable[list[Life]]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A resource type that can expire."""

    name: str
    read_page: ReadPage
    count: Callable[[psycopg.AsyncConnection[Any]], Awaitable[int]]
    delete: Callable[[Pass, int], Awaitable[bool]]
    deleted: dict[ExpiryReason, Counter]


PARTS: Final = (
    Part(snapshots.NAME, snapshots.read_page, snapshots.count, delete_snapshot, measures.snapshots_deleted),
    Part(mappings.NAME, mappings.read_page, mappings.count, delete_mapping, measures.mappings_deleted),
)


@dataclass(slots=True)
class Counts:
    """The counts of a pass for one resource type."""

    deleted: int = 0
    failed: int = 0
    blocked: int = 0


async def enforce(ctx: Pass) -> Result:
    """Delete expired snapshots and mappings."""
    began = time.monotonic()
    found = {part.name: await _enforce(ctx, part) for part in PARTS}
    measures.lifecycle_passes.inc()
    measures.lifecycle_seconds.observe(time.monotonic() - began)
    fields = {f"{name}s_{what}": getattr(one, what) for name, one in found.items() for what in Counts.__slots__}
    every = found.values()
    return Result(
        sum(one.deleted for one in every), sum(one.failed for one in every), sum(one.blocked for one in every), fields=fields
    )


async def _enforce(ctx: Pass, part: Part) -> Counts:
    counts = Counts()
    expired, begun = await _observe(ctx, part, counts)
    async with ctx.connection() as conn:
        total = await part.count(conn)
    refuse_too_many(part.name, expired=len(expired) - begun, total=total, is_manual=ctx.is_manual)
    for life, verdict in expired:
        try:
            if await part.delete(ctx, life.id):
                counts.deleted += 1
                _note_deleted(part, life, verdict)
        except TermLost:
            raise
        except Exception as error:  # the other items are still deleted
            counts.failed += 1
            measures.termination_failures.labels(part.name).inc()
            log.error("lifecycle_termination_failed", resource_type=part.name, id=life.id, error=str(error), exc_info=error)
    return counts


async def _observe(ctx: Pass, part: Part, counts: Counts) -> tuple[list[tuple[Life, Verdict]], int]:
    """The items to delete, and how many of them an earlier pass has already marked.

    It reads all items with a limit, in pages, so that items that cannot be deleted yet do not hide later ones.
    """
    found: list[tuple[Life, Verdict]] = []
    after, more = 0, True
    while more:
        async with ctx.connection() as conn:
            page = await part.read_page(conn, after=after, limit=PAGE)
        for life in page:
            for wrong in invalid_durations(life):
                log.warning("lifecycle_invalid_duration", resource_type=part.name, id=life.id, error=wrong)
            verdict = decide(life)
            if verdict is not None and verdict.blocked_by:
                counts.blocked += 1
                log.debug("lifecycle_blocked", resource_type=part.name, id=life.id, why=verdict.blocked_by)
            elif verdict is not None:
                found.append((life, verdict))
        after, more = page[-1].id if page else after, len(page) == PAGE
    return found, sum(life.deleting_since is not None for life, _ in found)


def _note_deleted(part: Part, life: Life, verdict: Verdict) -> None:
    part.deleted[verdict.because].inc()
    lag = max(0.0, (life.now - verdict.since).total_seconds())
    measures.enforcement_lag.labels(part.name).observe(lag)
    who = {"id": life.id, "owner": life.owner, "name": life.name}
    log.info("lifecycle_deleted", resource_type=part.name, **who, because=str(verdict.because), lag_seconds=lag)
