"""`holdfast export run`"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from holdfast.cli.exits import GaveUp
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.times import length
from holdfast.cli.verb import Session, verb
from holdfast.cli.waiting import ENDED, Timeout, Wait, end_with, short_length, wait_for
from holdfast.errors import UsageError

app = typer.Typer(help="Exports: the result of SQL as Parquet files.", no_args_is_help=True)

KIND = "export.run"
LOOK_SECONDS = 0.5


def result_of(job: Row) -> Row:
    """What the export has written, as far as it has. Pure."""
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
    sql: Annotated[str, typer.Option("--sql", help="One SELECT, or @file.sql.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", help="A folder of the worker's machine, s3://bucket/prefix or gs://…", show_default=False)
    ],
    engine: Annotated[str, typer.Option("--engine", help="Who runs the SQL: duckdb or trino.")] = "duckdb",
    catalog: Annotated[str | None, typer.Option(help="Where names without a catalog are looked for.")] = None,
    schema: Annotated[str | None, typer.Option(help="Where names without a schema are looked for.")] = None,
    role: Annotated[str | None, typer.Option(help="In whose name Trino runs it.")] = None,
    max_duration: Annotated[str | None, typer.Option(help="How long it may take, such as 2h.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same call again gives the same job.")] = None,
    wait: Wait = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Wait, and show how far it is with a bar.")] = False,
    timeout: Timeout = None,
) -> None:
    """Write the result of a SELECT to Parquet files.

    It runs as a job, in a worker that has `--import holdfast.services.exports.kinds`. The files can be seen by their
    `_manifest.json` once the job has completed, and then all of them.
    """
    named = {"sql": sql_of(sql), "to": place_of(to), "engine": engine, "catalog": catalog, "schema": schema, "role": role}
    longest = short_length(max_duration)
    if longest == 0:  # the job would take it for nothing said
        raise UsageError(f"--max-duration {max_duration} leaves no time for anything; say 2h, or leave it out")
    asked = {**named, "max_seconds": longest}
    payload = {name: value for name, value in asked.items() if value is not None}
    made = session.act("POST", "/api/jobs", {"kind": KIND, "payload": payload}, key=key)
    job = made["job"]
    if watch:
        job = watched(session, made["id"], timeout)
    elif wait:
        (job,) = wait_for(session, [made["id"]], timeout)
    session.out.rows(SHAPE, [job], session.way, single=True)
    if wait or watch:
        end_with([job])
    session.out.hint(f"holdfast job wait {made['id']}")


def sql_of(said: str) -> str:
    """The SQL itself, or what is in the file that it names."""
    if not said.startswith("@"):
        return said
    try:
        return Path(said[1:]).read_text()
    except OSError as error:
        raise UsageError(f"cannot read {said[1:]}: {error}") from None


def place_of(to: str) -> str:
    """The address; a folder is named from here, since the worker has another idea of where that is."""
    return to if "://" in to else str(Path(to).expanduser().absolute())


def watched(session: Session, job_id: int, timeout: str | None) -> dict[str, Any]:
    """The job when it has ended; until then a bar on standard error. Ctrl-C leaves it running."""
    deadline = None if timeout is None else time.monotonic() + length(timeout).total_seconds()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=session.out.errors, transient=True) as bar:
        task = bar.add_task(f"job {job_id}", total=None)
        while True:
            job: dict[str, Any] = session.get(f"/api/jobs/{job_id}")
            bar.update(task, description=description_of(job), total=_total(job), completed=job["progress"] or 0)
            if job["state"] in ENDED:
                return job
            if deadline is not None and time.monotonic() + LOOK_SECONDS > deadline:
                raise GaveUp(f"{description_of(job)} after {timeout}; it goes on without us: holdfast job wait {job_id}")
            time.sleep(LOOK_SECONDS)


def _total(job: Row) -> float | None:
    """1 once the engine tells a share; before that the bar only moves to and fro."""
    return None if job["progress"] is None else 1.0


def description_of(job: Row) -> str:
    """What a job does now, in a few words. Pure."""
    return f"job {job['id']} {job['message'] or job['state']}"
