"""`holdfast export run`"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.errors import UsageError
from holdfast.toolkit.cli.exit_codes import WaitTimeout
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.verb import Session, verb
from holdfast.toolkit.cli.waiting import ENDED, Timeout, Wait, deadline_of, end_with, progress_bars, seconds_of, wait_for

app = typer.Typer(help="Exports: the result of SQL as Parquet files.", no_args_is_help=True)

KIND = "exports.run"
POLL_SECONDS = 0.5


def result_of(job: Row) -> Row:
    """What the export has written; empty while it runs. Pure."""
    return job["result"] if isinstance(job["result"], dict) else {}


SHAPE = Shape(
    "job",
    [
        Column("JOB", "id"),
        Column("STATE", "state", Kind.WORD),
        Column("ROWS", lambda job: result_of(job).get("rows"), Kind.NUMBER),
        Column("BYTES", lambda job: result_of(job).get("bytes"), Kind.NUMBER),
        Column("FILES", lambda job: len(result_of(job).get("files", ())) or None, Kind.NUMBER),
        Column("TO", lambda job: job["payload"]["to"], long=True),
        Column("ERROR", "error", long=True),
    ],
)


@app.callback()
def _export() -> None:
    """Exports: the result of SQL as Parquet files."""


@verb(app, "run")
def run_command(
    session: Session,
    sql: Annotated[str, typer.Option("--sql", help="One SELECT statement, or @file.sql.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", help="A folder on the worker's machine, s3://bucket/prefix or gs://…", show_default=False)
    ],
    engine: Annotated[str, typer.Option("--engine", help="The engine: duckdb or trino.")] = "duckdb",
    catalog: Annotated[str | None, typer.Option(help="Default catalog of table names.")] = None,
    schema: Annotated[str | None, typer.Option(help="Default schema of table names.")] = None,
    role: Annotated[str | None, typer.Option(help="The role under which Trino runs the SQL.")] = None,
    max_duration: Annotated[str | None, typer.Option(help="Maximum duration, such as 2h.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: repeating the call returns the same job.")] = None,
    wait: Wait = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Wait, and show a progress bar.")] = False,
    timeout: Timeout = None,
) -> None:
    """Write the result of a SELECT to Parquet files.

    The export runs as a job, in a worker with `--import holdfast.services.exports.kinds`. When the job has completed, its
    `_manifest.json` lists all files.
    """
    named = {"sql": sql_of(sql), "to": place_of(to), "engine": engine, "catalog": catalog, "schema": schema, "role": role}
    longest = seconds_of(max_duration)
    if longest == 0:  # the job would read 0 as no limit
        raise UsageError(f"--max-duration must be positive, not {max_duration}; pass a duration such as 2h, or leave it out")
    given = {**named, "max_seconds": longest}
    payload = {name: value for name, value in given.items() if value is not None}
    made = session.act("POST", "/api/jobs", {"kind": KIND, "payload": payload}, key=key)
    job = made["job"]
    if watch:
        job = watched(session, made["id"], timeout)
    elif wait:
        (job,) = wait_for(session, [made["id"]], timeout)
    session.out.rows(SHAPE, [job], session.transport, single=True)
    if wait or watch:
        end_with([job])
    else:
        session.out.hint(f"holdfast job wait {made['id']}")


def sql_of(text: str) -> str:
    """The SQL itself, or the content of the file that `@file` names."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except OSError as error:
        raise UsageError(f"cannot read {text[1:]}: {error.strerror}") from None


def place_of(to: str) -> str:
    """The target; a relative folder becomes absolute, because the worker runs in another directory."""
    return to if "://" in to else str(Path(to).expanduser().absolute())


def watched(session: Session, job_id: int, timeout: str | None) -> dict[str, Any]:
    """The job when it has ended; until then a progress bar on standard error. Ctrl-C leaves it running."""
    deadline = deadline_of(timeout)
    with progress_bars(session) as bar:
        task = bar.add_task(f"job {job_id}", total=None)
        while True:
            job: dict[str, Any] = session.get(f"/api/jobs/{job_id}")
            bar.update(task, description=description_of(job), total=_total(job), completed=job["progress"] or 0)
            if job["state"] in ENDED:
                return job
            if time.monotonic() + POLL_SECONDS > deadline:
                raise WaitTimeout(
                    f"{description_of(job)} after {timeout}; it continues. To wait again: holdfast job wait {job_id}"
                )
            time.sleep(POLL_SECONDS)


def _total(job: Row) -> float | None:
    """1 once the engine reports progress; before that the bar is indeterminate."""
    return None if job["progress"] is None else 1.0


def description_of(job: Row) -> str:
    """What a job does now. Pure."""
    return f"job {job['id']} {job['message'] or job['state']}"
