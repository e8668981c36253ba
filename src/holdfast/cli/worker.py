"""`holdfast worker run`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdfast import catalog
from holdfast.apps.database import database
from holdfast.apps.telemetry import begin_telemetry
from holdfast.apps.worker import executor_config, keep
from holdfast.cli.modules import RunsModules
from holdfast.cli.program_settings import program_settings
from holdfast.database.revision import require_current, wanted
from holdfast.errors import UsageError
from holdfast.toolkit.cli.verb import Dsn, LogFormatOption, program
from holdfast.worker.keeper.messages import Mode

app = typer.Typer(help="Run jobs; list workers and make them quiet.", no_args_is_help=True)


@app.callback()
def _worker() -> None:
    """Run jobs; list workers and make them quiet."""


@program(app, "run", cls=RunsModules)
def run_command(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module with jobs; may be repeated. Default: the jobs of the services."),
    ] = None,
    dsn: Dsn = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kinds", help="Only these kinds, such as `a,b`; may be repeated.")
    ] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="A queue; may be repeated. Default: `default`.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs run at once in each executor process.")] = 10,
    executors: Annotated[int, typer.Option(min=1, help="How many processes run jobs.")] = 1,
    once: Annotated[
        bool, typer.Option("--once", help="Run one job and exit: 0 if it completed or there is none, else 1.")
    ] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no job is left.")] = False,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", help="Serve /health, /ready and /metrics on PORT or HOST:PORT; default: HOLDFAST_WORKER_HTTP, else none."
        ),
    ] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run the jobs of these modules until SIGTERM or Ctrl-C.

    Exit codes: 0 stopped, and unfinished jobs are back in the queue; 1 it could not start, the shutdown failed a job, or with
    --once the attempt failed or was interrupted; 128 + n a second signal n stopped it at once.
    """
    given = program_settings(dsn=dsn, log_format=log_format)
    begin_telemetry(given)
    if once and (drain or executors > 1):
        raise UsageError("--once runs one job in one executor; do not pass --drain or --executors with it")
    mode: Mode = "once" if once else "drain" if drain else "serve"
    only = [kind for named in kinds or () for kind in named.split(",") if kind]
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        config = executor_config(
            given, address, modules or catalog.kind_modules(),
            kinds=only, queues=queue or ("default",), concurrency=concurrency, mode=mode,
        )  # fmt: skip
        code = keep(
            config,
            executors=executors,
            http=http or given.worker_http,
            wanted_revision=wanted(),
            crash_at=given.crash_keeper_at,
        )
    raise typer.Exit(code)
