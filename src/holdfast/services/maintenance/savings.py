"""What maintenance saved and what it cost: per run, and per month.

Files, delete files, manifests and snapshots are differences between the figures before and after each action. Storage is
counted only where files were deleted: a rewrite alone needs more storage until the old snapshots expire. Money is shown only
where a price is configured, and always as an estimate: other writers change a table, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import psycopg
from psycopg.rows import class_row

Conn = psycopg.AsyncConnection[Any]
GIB: Final = 1 << 30
LABEL: Final = "estimate"


@dataclass(frozen=True, slots=True)
class Prices:
    """The configured prices; None: not configured."""

    storage_gib_month: float | None = None
    engine_hour: float | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Money:
    """Amounts from configured prices. `net_first_month`: a month of the saved storage, minus the cost of the engine."""

    label: str
    currency: str
    storage_saved_per_month: float | None
    engine_cost: float | None
    net_first_month: float | None


@dataclass(frozen=True, slots=True)
class Saved:
    """Differences (positive: fewer than before), what was deleted, and the seconds of the engine."""

    data_files: int
    delete_files: int
    manifests: int
    snapshots: int
    deleted_files: int
    deleted_bytes: int
    engine_seconds: float
    money: Money | None


class Figures(Protocol):
    """An action with figures."""

    @property
    def before(self) -> dict[str, Any] | None: ...
    @property
    def after(self) -> dict[str, Any] | None: ...
    @property
    def details(self) -> dict[str, Any]: ...
    @property
    def engine_seconds(self) -> float: ...


# Engines that count deleted files by what they are.
DELETED: Final = ("deleted_data_files", "deleted_manifests", "deleted_manifest_lists", "deleted_statistics_files")


def with_totals(details: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an action, with the number of deleted files in total. Pure."""
    parts = [int(details[name]) for name in DELETED if name in details]
    return {**details, "deleted_files": sum(parts)} if parts and "deleted_files" not in details else dict(details)


COUNTED: Final = ("data_files", "delete_files", "manifests", "snapshots")


def saved_by(actions: Iterable[Figures], prices: Prices) -> Saved:
    """What these actions of one run saved together. Pure."""
    found = list(actions)
    differences = {name: sum(_less(one.before, one.after, name) for one in found) for name in COUNTED}
    deleted_bytes = sum(int(one.details.get("deleted_bytes") or 0) for one in found)
    seconds = round(sum(one.engine_seconds for one in found), 3)
    return Saved(
        **differences,
        deleted_files=sum(int(one.details.get("deleted_files") or 0) for one in found),
        deleted_bytes=deleted_bytes,
        engine_seconds=seconds,
        money=money_of(deleted_bytes, seconds, prices),
    )


def _less(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, name: str) -> int:
    if before is None or after is None:
        return 0
    return int(before.get(name) or 0) - int(after.get(name) or 0)


def money_of(deleted_bytes: int, engine_seconds: float, prices: Prices) -> Money | None:
    """The amounts, as far as there are prices; None without any. Pure."""
    storage, hour = prices.storage_gib_month, prices.engine_hour
    if storage is None and hour is None:
        return None
    saved = None if storage is None else round(deleted_bytes / GIB * storage, 4)
    cost = None if hour is None else round(engine_seconds / 3600 * hour, 4)
    net = None if saved is None or cost is None else round(saved - cost, 4)
    return Money(LABEL, prices.currency, saved, cost, net)


# ---------------------------------------------------------------------------------------------------------------------
# Months
# ---------------------------------------------------------------------------------------------------------------------

DIFFERENCES = ",\n        ".join(
    f"coalesce(sum((a.before ->> '{name}')::bigint - (a.after ->> '{name}')::bigint), 0)::bigint AS {name}" for name in COUNTED
)
# The engine's time counts for actions that failed, too.
BY_MONTH = f"""
    SELECT to_char(date_trunc('month', r.finished_at AT TIME ZONE 'UTC'), 'YYYY-MM') AS month,
        count(DISTINCT r.job_id) AS runs, count(DISTINCT (r.catalog, r.namespace, r.name)) AS tables,
        {DIFFERENCES},
        coalesce(sum((a.details ->> 'deleted_files')::bigint), 0)::bigint AS deleted_files,
        coalesce(sum((a.details ->> 'deleted_bytes')::bigint), 0)::bigint AS deleted_bytes,
        round(coalesce(sum(a.engine_seconds), 0)::numeric, 3)::float AS engine_seconds
    FROM holdfast.maintenance_runs r JOIN holdfast.maintenance_actions a ON a.job_id = r.job_id
    WHERE r.finished_at IS NOT NULL AND NOT r.dry_run
      AND (%(since)s::timestamptz IS NULL OR r.finished_at >= %(since)s)
      AND (%(catalog)s::text IS NULL OR r.catalog = %(catalog)s)
    GROUP BY 1 ORDER BY 1 DESC
"""


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a month, as the database has them."""

    month: str
    runs: int
    tables: int
    data_files: int
    delete_files: int
    manifests: int
    snapshots: int
    deleted_files: int
    deleted_bytes: int
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Month(Sums):
    """A month (UTC) with its amounts, if there are prices."""

    money: Money | None


async def by_month(conn: Conn, prices: Prices, *, since: datetime | None = None, catalog: str | None = None) -> list[Month]:
    """The savings of each month, newest first."""
    async with conn.cursor(row_factory=class_row(Sums)) as cursor:
        await cursor.execute(BY_MONTH, {"since": since, "catalog": catalog})
        rows = await cursor.fetchall()
    return [Month(**asdict(row), money=money_of(row.deleted_bytes, row.engine_seconds, prices)) for row in rows]
