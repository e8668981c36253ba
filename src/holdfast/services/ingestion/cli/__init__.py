"""`holdfast ingest upload | status | errors | recalc | factors | units | reference | stats | model`"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.errors import UsageError
from holdfast.services.ingestion.cli import progress, shapes
from holdfast.services.ingestion.models.yaml_file import read_model
from holdfast.toolkit.cli.arguments import number_of
from holdfast.toolkit.cli.verb import Limit, Session, verb
from holdfast.toolkit.cli.waiting import Timeout
from holdfast.toolkit.client.problems import ApiError

app = typer.Typer(help="Ingestion: upload files, follow them, list bad rows, recalculate.", no_args_is_help=True)
model_app = typer.Typer(help="Data models: modules, data entry types, columns.", no_args_is_help=True)
app.add_typer(model_app, name="model")

File = Annotated[Path, typer.Argument(help="A CSV, XLSX or Parquet file.", show_default=False)]
Year = Annotated[int, typer.Option("--year", help="The year of the data.", show_default=False)]
Module = Annotated[str | None, typer.Option("--module", help="Only this module.", show_default=False)]
Det = Annotated[str | None, typer.Option("--det", help="The data entry type.", show_default=False)]
JobId = Annotated[str, typer.Argument(help="The job's id.", metavar="JOB", show_default=False)]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Encoding of a CSV file; default: detected.")]
Delimiter = Annotated[str | None, typer.Option("--delimiter", help="Delimiter of a CSV file; default: detected.")]
Decimal = Annotated[str | None, typer.Option("--decimal", help="Decimal separator, '.' or ','; default: detected.")]
MaxErrors = Annotated[
    int | None, typer.Option("--max-errors", min=0, help="Load nothing if more than this many rows are bad; 0: all or nothing.")
]
MaxPercent = Annotated[
    float | None, typer.Option("--max-error-percent", help="Load nothing if more than this percentage of the rows is bad.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate only; load nothing.")]
Detach = Annotated[bool, typer.Option("--detach", help="Do not wait for the pipeline.")]
SLOT_PATIENCE = 60.0  # seconds
DOWNLOAD = 600.0  # seconds


@verb(app, "upload")
def upload_command(
    session: Session,
    file: File,
    module: Annotated[str, typer.Option("--module", help="The module.", show_default=False)],
    det: Annotated[str, typer.Option("--det", help="The data entry type.", show_default=False)],
    year: Year,
    mode: Annotated[str, typer.Option("--mode", help="append, replace (the entries of the year) or upsert.")] = "append",
    unit: Annotated[str | None, typer.Option("--unit", help="Only this organisational unit.")] = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    max_errors: MaxErrors = None,
    max_error_percent: MaxPercent = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    timeout: Timeout = None,
) -> None:
    """Upload a file of data entries; its rows are validated and loaded, then emissions are recalculated and aggregated."""
    body = {"module": module, "det": det, "year": year, "mode": mode, "unit": unit}
    body |= options_of(encoding, delimiter, decimal, max_errors, max_error_percent, dry_run)
    start(session, "/api/ingestion/dispatch", file, body, detach=detach, timeout=timeout)


@verb(app, "factors")
def factors_command(
    session: Session,
    file: File,
    year: Year,
    module: Annotated[str | None, typer.Option("--module", help="The module.", show_default=False)] = None,
    det: Det = None,
    max_errors: MaxErrors = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    timeout: Timeout = None,
) -> None:
    """Upload a file of factors; the types whose factors changed are recalculated."""
    body = {"year": year, "module": module, "det": det, **options_of(None, None, None, max_errors, None, dry_run)}
    start(session, "/api/ingestion/factors", file, body, detach=detach, timeout=timeout)


@verb(app, "units")
def units_command(
    session: Session, file: File, year: Year, dry_run: DryRun = False, detach: Detach = False, timeout: Timeout = None
) -> None:
    """Upload a file of organisational units (code, label, parent), and provision the year."""
    body = {"year": year, **options_of(None, None, None, None, None, dry_run)}
    start(session, "/api/ingestion/units", file, body, detach=detach, timeout=timeout)


@verb(app, "reference")
def reference_command(
    session: Session,
    file: File,
    name: Annotated[str, typer.Option("--name", help="Name of the list, as `lookup` in the data model.", show_default=False)],
    detach: Detach = False,
    timeout: Timeout = None,
) -> None:
    """Upload a reference list (code, label)."""
    start(session, "/api/ingestion/references", file, {"name": name}, detach=detach, timeout=timeout)


@verb(app, "recalc")
def recalc_command(
    session: Session,
    year: Year,
    module: Module = None,
    det: Det = None,
    only_due: Annotated[
        bool, typer.Option("--only-due", help="Only types that changed since their last recalculation.")
    ] = False,
    detach: Detach = False,
    timeout: Timeout = None,
) -> None:
    """Recalculate emissions, then aggregate them."""
    body = {"year": year, "module": module, "det": det, "only_due": only_due}
    start(session, "/api/ingestion/recalculations", None, body, detach=detach, timeout=timeout)


@verb(app, "status")
def status_command(
    session: Session,
    job: Annotated[str | None, typer.Argument(help="A job's id; without one: the newest jobs.", metavar="JOB")] = None,
    year: Annotated[int | None, typer.Option("--year", help="Only this year.")] = None,
    module: Module = None,
    limit: Limit = 20,
) -> None:
    """Show an ingestion job, or list the newest ones."""
    if job is not None:
        session.one(shapes.CARD, session.get(f"/api/ingestion/jobs/{number_of(job, 'job')}"))
        return
    session.rows(shapes.JOBS, session.listed("/api/ingestion/jobs", most=limit, year=year, module=module))


@verb(app, "errors")
def errors_command(
    session: Session,
    job: JobId,
    limit: Limit = 50,
    download: Annotated[
        Path | None, typer.Option("--download", help="Write every bad row to this CSV file, to correct and upload again.")
    ] = None,
) -> None:
    """List the bad rows of a job: line, column, value, reason."""
    number = number_of(job, "job")
    if download is not None:
        path = f"/api/ingestion/jobs/{number}/bad-rows"
        download.write_bytes(session.transport.content("GET", path, body=None, accept="text/csv", timeout=DOWNLOAD))
        session.out.say(f"written to {download}")
        return
    session.rows(shapes.ERRORS, session.listed(f"/api/ingestion/jobs/{number}/errors", most=limit))


@verb(app, "stats")
def stats_command(session: Session, year: Year, module: Module = None) -> None:
    """Show the aggregated emissions of a year."""
    session.rows(shapes.STATISTICS, session.get("/api/ingestion/stats", year=year, module=module))


@verb(model_app, "apply")
def apply_command(
    session: Session,
    file: Annotated[Path, typer.Argument(help="A YAML or JSON file.", show_default=False)],
    change: Annotated[
        str | None, typer.Option("--change", help="Description of the change, stored with the new version.")
    ] = None,
) -> None:
    """Create a data model, or add a version if it changed."""
    definition = read_model(file)
    body = {"definition": definition, "change_description": change}
    session.one(shapes.MODEL, session.act("PUT", f"/api/ingestion/models/{definition.get('name')}", body))


@verb(model_app, "list")
def list_models_command(session: Session) -> None:
    """List the data models."""
    session.rows(shapes.MODEL, session.get("/api/ingestion/models"))


# ---------------------------------------------------------------------------------------------------------------------
# Starting and following
# ---------------------------------------------------------------------------------------------------------------------


def options_of(
    encoding: str | None,
    delimiter: str | None,
    decimal: str | None,
    max_errors: int | None,
    max_error_percent: float | None,
    dry_run: bool,
) -> dict[str, Any]:
    """The options of a file as the API takes them. Pure."""
    dialect = {"encoding": encoding, "delimiter": delimiter, "decimal": decimal}
    policy = {"max_errors": max_errors, "max_error_percent": max_error_percent}
    return {
        "dialect": {name: value for name, value in dialect.items() if value is not None},
        "policy": {name: value for name, value in policy.items() if value is not None},
        "dry_run": dry_run,
    }


def start(session: Session, path: str, file: Path | None, body: dict[str, Any], *, detach: bool, timeout: str | None) -> None:
    """Upload, start the pipeline, and follow it unless told otherwise."""
    if file is not None:
        if not file.is_file():
            raise UsageError(f"there is no file {file}")
        sent = session.transport.upload("/api/ingestion/files", file, params={"name": file.name}).data
        body = {**body, "file_id": sent["id"]}
    made = when_the_slot_is_free(session, path, body)
    if detach:
        session.one(shapes.CARD, session.get(f"/api/ingestion/jobs/{made['job_id']}"))
        session.out.hint(f"holdfast ingest status {made['job_id']}")
        return
    ended = progress.follow(session, made["job_id"], made["pipeline_id"], timeout)
    session.rows(shapes.JOBS, ended)
    first = ended[0]
    if (first["outcome"] or {}).get("rows_skipped"):
        session.out.hint(f"holdfast ingest errors {first['job_id']}")
    if any(one["result"] == "ERROR" for one in ended):
        raise typer.Exit(1)


def when_the_slot_is_free(session: Session, path: str, body: dict[str, Any]) -> Any:
    """Send the request; while another job waits in the slot, wait until that one has started."""
    deadline = time.monotonic() + SLOT_PATIENCE
    while True:
        try:
            return session.act("POST", path, body)
        except ApiError as error:
            if error.problem.get("code") != "SLOT_WAITING" or time.monotonic() > deadline:
                raise
            session.out.say(f"waiting: job {error.problem.get('job_id')} waits in the same slot")
        time.sleep(1.0)
