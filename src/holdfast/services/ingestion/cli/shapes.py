"""How the commands of ingestion show things. Pure data."""

from __future__ import annotations

from typing import Any

from holdfast.toolkit.cli.output import Column, Kind, Row, Shape


def outcome(name: str) -> Any:
    """A column of what a job reports."""
    return lambda one: (one["outcome"] or {}).get(name)


def word(one: Row) -> str:
    """The result, or the state of a job that has none. Pure."""
    return str(one["result"] or one["state"])


def dialect_of(one: Row) -> str | None:
    """The detected dialect in one line. Pure."""
    dialect = (one["outcome"] or {}).get("dialect")
    if dialect is None:
        return None
    return f"{dialect['encoding']}, delimiter {dialect['delimiter']!r}, decimal {dialect['decimal']!r}"


JOBS = Shape(
    "job",
    [
        Column("JOB", "job_id"),
        Column("TYPE", "job_type"),
        Column("RESULT", word, Kind.WORD),
        Column("MODULE", "module"),
        Column("DET", "det"),
        Column("YEAR", "year"),
        Column("LOADED", outcome("rows_loaded"), Kind.NUMBER),
        Column("SKIPPED", outcome("rows_skipped"), Kind.NUMBER),
        Column("MESSAGE", "status_message", long=True),
        Column("CREATED", "created_at", Kind.TIME, wide=True),
        Column("PIPELINE", "pipeline_id", wide=True),
    ],
    key="job_id",
    empty="No ingestion jobs. Start one: holdfast ingest upload FILE --module … --det … --year …",
)
CARD = Shape(
    "job",
    [
        Column("JOB", "job_id"),
        Column("TYPE", "job_type"),
        Column("STATE", "state", Kind.WORD),
        Column("RESULT", "result", Kind.WORD),
        Column("DONE", "progress", Kind.PERCENT),
        Column("MESSAGE", "status_message"),
        Column("MODULE", "module"),
        Column("DET", "det"),
        Column("YEAR", "year"),
        Column("READ", outcome("rows_read"), Kind.NUMBER),
        Column("LOADED", outcome("rows_loaded"), Kind.NUMBER),
        Column("SKIPPED", outcome("rows_skipped"), Kind.NUMBER),
        Column("DIALECT", dialect_of),
        Column("PIPELINE", "pipeline_id"),
        Column("CREATED", "created_at", Kind.TIME),
        Column("FINISHED", "finished_at", Kind.TIME),
    ],
    key="job_id",
)
ERRORS = Shape(
    "error",
    [
        Column("LINE", "line", Kind.NUMBER),
        Column("COLUMN", "column"),
        Column("VALUE", "value"),
        Column("REASON", "reason", long=True),
    ],
    key="line",
    empty="No bad rows.",
)
STATISTICS = Shape(
    "statistic",
    [
        Column("MODULE", "module"),
        Column("DET", "det"),
        Column("UNIT", "unit"),
        Column("EMISSION", "emission_type"),
        Column("ENTRIES", "entries", Kind.NUMBER),
        Column("KG", "kg"),
    ],
    key="det",
    empty="No statistics for this year.",
)
MODEL = Shape(
    "model",
    [
        Column("MODEL", "name"),
        Column("VERSION", "version", Kind.NUMBER),
        Column("MODULES", lambda one: ", ".join(module["name"] for module in one["definition"]["modules"])),
        Column("CHANGE", "change_description", long=True),
        Column("CREATED", "created_at", Kind.TIME),
    ],
    key="name",
    empty="No data models. Create one: holdfast ingest model apply FILE",
)
