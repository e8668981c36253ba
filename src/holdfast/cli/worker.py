"""`holdfast worker run`"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.logs import write_logs
from holdfast.apps.up import database
from holdfast.apps.worker import kinds_of, work
from holdfast.database.migrate import require_current
from holdfast.settings import settings
from holdfast.worker.options import WorkerOptions

app = typer.Typer(help="Run jobs.", no_args_is_help=True)


@app.callback()
def _worker() -> None:
    """Run jobs."""


@app.command("run")
def run_command(
    modules: Annotated[list[str], typer.Option("--import", help="A module whose kinds to run; may be given more than once.")],
    url: Annotated[
        str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")
    ] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="Which queues; default: default.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs run at once.")] = 10,
    drain: Annotated[bool, typer.Option("--drain", help="End when there is nothing left to do.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines, also on a terminal.")] = False,
) -> None:
    """Run the jobs of these modules until SIGTERM or Ctrl-C."""
    given = settings().model_copy(update={"database_url": url}) if url else settings()
    write_logs(given, as_json=as_json)
    options = WorkerOptions(
        queues=tuple(queue or ("default",)),
        concurrency=concurrency,
        beat=timedelta(seconds=given.beat_seconds),
        poll=timedelta(seconds=min(given.poll_seconds, 2 * given.beat_seconds)),
        lease=timedelta(seconds=given.lease_seconds),
        grace=timedelta(seconds=given.grace_seconds),
        name=given.hostname,
    )
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        work(address, kinds_of(modules), options, until_empty=drain, crash_at=given.crash_at)
