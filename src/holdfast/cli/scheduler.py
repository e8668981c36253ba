"""`holdfast scheduler run`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.database import database
from holdfast.apps.scheduler import schedule
from holdfast.apps.telemetry import begin_telemetry
from holdfast.cli.modules import RunsModules
from holdfast.database.revision import require_current
from holdfast.settings import settings

app = typer.Typer(help="Run periodic loops.", no_args_is_help=True)


@app.callback()
def _scheduler() -> None:
    """Run periodic loops."""


@app.command("run", cls=RunsModules)
def run_command(
    modules: Annotated[
        list[str] | None, typer.Option("--import", help="A module whose reconcilers to run; may be given more than once.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines, also on a terminal.")] = False,
) -> None:
    """Run the kernel's loops and those of these modules until SIGTERM or Ctrl-C. Run as many of it as you like."""
    given = settings().model_copy(update={"database_url": url}) if url else settings()
    begin_telemetry(given, as_json=as_json)
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        schedule(address, given, modules or [])
