"""`holdfast worker remote`"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import catalog
from holdfast.apps.remote_worker import work_remotely
from holdfast.apps.telemetry import begin_telemetry
from holdfast.cli.program_settings import program_settings
from holdfast.toolkit.cli.transport import checked_url
from holdfast.toolkit.cli.verb import LogFormatOption
from holdfast.worker.modules import kinds_of
from holdfast.worker.options import WorkerOptions


def command(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module with jobs; may be repeated. Default: the jobs of the services."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Address of the API; default: HOLDFAST_API_URL.")] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="A queue; may be repeated. Default: `default`.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs run at once.")] = 10,
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no job is left.")] = False,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", help="Serve /health, /ready and /metrics on PORT or HOST:PORT; default: HOLDFAST_WORKER_HTTP, else none."
        ),
    ] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run the jobs of these modules through the API, without access to the database.

    The token (role `worker`) comes from HOLDFAST_API_TOKEN or from the file that HOLDFAST_API_TOKEN_FILE names.
    """
    given = program_settings(api_url=None if url is None else checked_url(url), log_format=log_format)
    begin_telemetry(given)
    options = WorkerOptions.from_settings(given, runner="remote", queues=tuple(queue or ("default",)), concurrency=concurrency)
    work_remotely(
        given, kinds_of(modules or catalog.kind_modules()), options, until_empty=drain, http=http or given.worker_http
    )
