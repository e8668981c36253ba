"""`holdfast worker remote`"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from holdfast import catalog
from holdfast.apps.options import worker_options
from holdfast.apps.remote_worker import work_remotely
from holdfast.apps.telemetry import begin_telemetry
from holdfast.settings import settings
from holdfast.worker.modules import kinds_of


def command(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module whose kinds to run; may be given more than once. Default: the services."),
    ] = None,
    api: Annotated[str | None, typer.Option("--api", help="The address of the API; default: HOLDFAST_API_URL.")] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="Which queues; default: default.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs run at once.")] = 10,
    drain: Annotated[bool, typer.Option("--drain", help="End when there is nothing left to do.")] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", help="Serve /health, /ready and /metrics on HOST:PORT; default: HOLDFAST_WORKER_HTTP, or not."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines, also on a terminal.")] = False,
) -> None:
    """Run the jobs of these modules without a database: through the API, with a token for workers.

    The token comes from HOLDFAST_API_TOKEN or the file in HOLDFAST_API_TOKEN_FILE, never from the command line.
    """
    given = settings().model_copy(update={"api_url": api}) if api else settings()
    begin_telemetry(given, as_json=as_json)
    options = worker_options(
        given,
        runner="remote",
        queues=tuple(queue or ("default",)),
        concurrency=concurrency,
        poll=timedelta(seconds=min(given.poll_seconds, 2 * given.beat_seconds)),
    )
    work_remotely(
        given, kinds_of(modules or catalog.kind_modules()), options, until_empty=drain, http=http or given.worker_http
    )
