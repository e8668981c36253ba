"""`holdfast scheduler run`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.database import database
from holdfast.apps.scheduler import schedule
from holdfast.apps.telemetry import begin_telemetry
from holdfast.cli.modules import RunsModules
from holdfast.cli.program_settings import program_settings
from holdfast.database.revision import require_current
from holdfast.toolkit.cli.verb import Dsn, LogFormatOption, program

app = typer.Typer(help="Run periodic loops.", no_args_is_help=True)


@app.callback()
def _scheduler() -> None:
    """Run periodic loops."""


@program(app, "run", cls=RunsModules)
def run_command(
    modules: Annotated[list[str] | None, typer.Option("--import", help="A module with reconcilers; may be repeated.")] = None,
    dsn: Dsn = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            help="Serve /health, /ready and /metrics on PORT or HOST:PORT; default: HOLDFAST_SCHEDULER_HTTP, else none.",
        ),
    ] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run the built-in loops and those of these modules until SIGTERM or Ctrl-C. Several schedulers may run at once."""
    given = program_settings(dsn=dsn, log_format=log_format)
    begin_telemetry(given)
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        schedule(address, given, modules or [], http=http or given.scheduler_http)
