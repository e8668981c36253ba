"""How tables, runs, policies and savings are printed. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.toolkit.cli.output import Column, Kind, Row, Shape


def bytes_text(count: Any) -> str | None:
    """A number of bytes in a unit that people read. Pure."""
    if count is None:
        return None
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def full_name(row: Row) -> str:
    """The name with the database. Pure."""
    return f"{row['database']}.{row['name']}"


def change(row: Row, name: str) -> str | None:
    """A figure before and after an action, as `1,000 → 1`. Pure."""
    before, after = row["before"], row["after"]
    if before is None:
        return None
    first = before.get(name)
    last = None if after is None else after.get(name)
    if name == "average_file_bytes":
        return f"{bytes_text(first)} → {bytes_text(last)}" if last is not None else bytes_text(first)
    return f"{first:,} → {last:,}" if last is not None else f"{first:,}"


def note_of(row: Row) -> str | None:
    """The error of an action, or its own figures. Pure."""
    if row["error"]:
        return str(row["error"])
    shown = [f"{name.replace('_', ' ')} {value:,}" for name, value in row["details"].items() if isinstance(value, int)]
    return ", ".join(shown) or None


TABLES = Shape(
    "table",
    [
        Column("TABLE", full_name),
        Column("HEALTH", "health", Kind.NUMBER),
        Column("WHY", lambda one: ", ".join(one["reasons"]), long=True),
        Column("FILES", "data_files", Kind.NUMBER),
        Column("AVG FILE", lambda one: bytes_text(one["average_file_bytes"])),
        Column("SIZE", lambda one: bytes_text(one["data_bytes"])),
        Column("MAINTAINED", "last_maintenance_at", Kind.TIME),
        Column("JOB", "running_job_id"),
        Column("CATALOG", "catalog", wide=True),
        Column("DELETES", "delete_files", Kind.NUMBER, wide=True),
        Column("SNAPSHOTS", "snapshots", Kind.NUMBER, wide=True),
        Column("MANIFESTS", "manifests", Kind.NUMBER, wide=True),
        Column("MEASURED", "measured_at", Kind.TIME, wide=True),
        Column("ERROR", "error", wide=True),
    ],
    key="full_name",
    empty="No tables. Check the catalogs: holdfast doctor",
)
TABLE = Shape(
    "table",
    [
        Column("TABLE", full_name),
        Column("CATALOG", "catalog"),
        Column("HEALTH", lambda one: None if one["health"] is None else f"{one['health']} of 100 ({one['label']})"),
        Column("FILES", "data_files", Kind.NUMBER),
        Column("AVG FILE", lambda one: bytes_text(one["average_file_bytes"])),
        Column("SIZE", lambda one: bytes_text(one["data_bytes"])),
        Column("ROWS", "records", Kind.NUMBER),
        Column("DELETES", "delete_files", Kind.NUMBER),
        Column("SNAPSHOTS", "snapshots", Kind.NUMBER),
        Column("MANIFESTS", "manifests", Kind.NUMBER),
        Column("MEASURED", "measured_at", Kind.TIME),
        Column("MAINTAINED", "last_maintenance_at", Kind.TIME),
        Column("RUNNING JOB", "running_job_id"),
        Column("ERROR", "error"),
    ],
    key="full_name",
)
PARTS = Shape(
    "part",
    [
        Column("PART", "name"),
        Column("POINTS", lambda one: f"-{one['lost']} of {one['weight']}" if one["lost"] else f"0 of {one['weight']}"),
        Column("NOW", "says", long=True),
        Column("WOULD HELP", "improvement", long=True),
    ],
    key="name",
)
ACTIONS = Shape(
    "action",
    [
        Column("ACTION", "action"),
        Column("STATUS", "status", Kind.WORD),
        Column("FILES", lambda one: change(one, "data_files")),
        Column("AVG FILE", lambda one: change(one, "average_file_bytes")),
        Column("DELETES", lambda one: change(one, "delete_files")),
        Column("MANIFESTS", lambda one: change(one, "manifests")),
        Column("SNAPSHOTS", lambda one: change(one, "snapshots")),
        Column("TOOK", "engine_seconds", Kind.SECONDS),
        Column("NOTE", note_of, long=True),
    ],
    key="action",
)
RUNS = Shape(
    "run",
    [
        Column("JOB", "job_id"),
        Column("OUTCOME", "outcome", Kind.WORD),
        Column("ACTIONS", lambda one: ", ".join(step["action"] for step in one["actions"]), long=True),
        Column("FILES SAVED", lambda one: (one["saved"] or {}).get("data_files"), Kind.NUMBER),
        Column("DELETED", lambda one: bytes_text((one["saved"] or {}).get("deleted_bytes"))),
        Column("TOOK", lambda one: (one["saved"] or {}).get("engine_seconds"), Kind.SECONDS),
        Column("FINISHED", "finished_at", Kind.TIME),
        Column("BY", "requested_by"),
        Column("ERROR", "error", long=True),
    ],
    key="job_id",
    empty="No maintenance of this table yet. Begin: holdfast table maintain DATABASE.TABLE --actions rewrite_data_files",
)
RUN = Shape(
    "run",
    [
        Column("JOB", "job_id"),
        Column("TABLE", "table"),
        Column("OUTCOME", "outcome", Kind.WORD),
        Column("ENGINE", "engine"),
        Column("DRY RUN", lambda one: "yes" if one["dry_run"] else None),
        Column("PROGRESS", "progress", Kind.PERCENT),
        Column("ERROR", "error"),
        Column("BY", "requested_by"),
        Column("CREATED", "created_at", Kind.TIME),
        Column("FINISHED", "finished_at", Kind.TIME),
    ],
    key="job_id",
)
POLICIES = Shape(
    "policy",
    [
        Column("NAME", "name"),
        Column("ENABLED", lambda one: "yes" if one["enabled"] else "no"),
        Column("ACTIONS", lambda one: ", ".join(one["actions"]), long=True),
        Column("NEXT", "next_due_at", Kind.TIME),
        Column("LAST", "last_due_at", Kind.TIME),
        Column("VERSION", "version", Kind.NUMBER),
        Column("CHANGED BY", "updated_by"),
        Column("CHANGED", "updated_at", Kind.TIME, wide=True),
    ],
    key="name",
    empty="No policies. Create one: holdfast table policy apply -f policy.yaml",
)
PREVIEW = Shape(
    "table",
    [
        Column("TABLE", full_name),
        Column("HEALTH", "health", Kind.NUMBER),
        Column("RUNS", lambda one: "no" if one["skipped"] else "yes"),
        Column("WHY NOT", "skipped", long=True),
        Column("CATALOG", "catalog", wide=True),
    ],
    key="name",
    empty="The policy matches no table.",
)
SAVINGS = Shape(
    "month",
    [
        Column("MONTH", "month"),
        Column("RUNS", "runs", Kind.NUMBER),
        Column("TABLES", "tables", Kind.NUMBER),
        Column("FILES SAVED", "data_files", Kind.NUMBER),
        Column("DELETED FILES", "deleted_files", Kind.NUMBER),
        Column("DELETED", lambda one: bytes_text(one["deleted_bytes"])),
        Column("ENGINE TIME", "engine_seconds", Kind.SECONDS),
        Column("ESTIMATE", lambda one: money_text(one["money"]), long=True),
        Column("DELETE FILES", "delete_files", Kind.NUMBER, wide=True),
        Column("MANIFESTS", "manifests", Kind.NUMBER, wide=True),
        Column("SNAPSHOTS", "snapshots", Kind.NUMBER, wide=True),
    ],
    key="month",
    empty="No maintenance has ended yet.",
)


def money_text(money: Row | None) -> str | None:
    """The amounts, as far as there are prices. Pure."""
    if money is None:
        return None
    parts = [
        ("storage", money["storage_saved_per_month"], "per month"),
        ("engine", money["engine_cost"], "once"),
        ("net", money["net_first_month"], "in the first month"),
    ]
    said = ", ".join(f"{name} {amount:.2f} {when}" for name, amount, when in parts if amount is not None)
    return f"{said} ({money['currency']}, {money['label']})"
