"""`holdfast worker run`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdfast import catalog
from holdfast.apps.database import database
from holdfast.apps.telemetry import begin_telemetry
from holdfast.apps.worker import keep, orders_from
from holdfast.cli.modules import RunsModules
from holdfast.database.revision import require_current, wanted
from holdfast.errors import UsageError
from holdfast.settings import settings
from holdfast.worker.orders import Mode

app = typer.Typer(help="Run jobs.", no_args_is_help=True)


@app.callback()
def _worker() -> None:
    """Run jobs."""


@app.command("run", cls=RunsModules)
def run_command(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module whose kinds to run; may be given more than once. Default: the services."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kinds", help="Only these kinds of the modules: `a,b`; may be given more than once.")
    ] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="Which queues; default: default.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs run at once in each executor.")] = 10,
    executors: Annotated[int, typer.Option(min=1, help="How many processes run jobs; each has an interpreter of its own.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Take one job, run it, end with 0 or 1; 0 if there is none.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="End when there is nothing left to do.")] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", help="Serve /health, /ready and /metrics on HOST:PORT; default: HOLDFAST_WORKER_HTTP, or not."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines, also on a terminal.")] = False,
) -> None:
    """Run the jobs of these modules until SIGTERM or Ctrl-C.

    Exit codes: 0 ended tidily, and what was not done is back in the queue; 1 could not start, or a job was failed by the
    shutdown, or with --once its attempt failed or was cut off; 128 + n ended at once by a second signal n.
    """
    given = settings().model_copy(update={"database_url": url}) if url else settings()
    begin_telemetry(given, as_json=as_json)
    if once and (drain or executors > 1):
        raise UsageError("--once takes one job in one executor; leave out --drain and --executors")
    mode: Mode = "once" if once else "drain" if drain else "serve"
    only = [kind for named in kinds or () for kind in named.split(",") if kind]
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        orders = orders_from(
            given, address, modules or catalog.kind_modules(),
            kinds=only, queues=queue or ("default",), concurrency=concurrency, mode=mode,
        )  # fmt: skip
        code = keep(
            orders,
            executors=executors,
            http=http or given.worker_http,
            wanted_revision=wanted(),
            crash_at=given.crash_keeper_at,
        )
    raise typer.Exit(code)
