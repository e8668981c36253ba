"""`holdfast worker run`"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from holdfast.cli.modules import RunsModules
from holdfast.toolkit.cli.verb import Dsn, LogFormatOption, program

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
    # Imported when it runs: `worker list` starts without the code that runs jobs.
    code = import_module("holdfast.cli.run_worker").run(
        modules, dsn=dsn, kinds=kinds, queue=queue, concurrency=concurrency, executors=executors,
        once=once, drain=drain, http=http, log_format=log_format,
    )  # fmt: skip
    raise typer.Exit(code)
