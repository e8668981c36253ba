"""`holdfast worker remote`"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from holdfast.toolkit.cli.verb import LogFormatOption


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
    # Imported when it runs, as for `worker run`.
    import_module("holdfast.cli.run_remote_worker").run(
        modules, url=url, queue=queue, concurrency=concurrency, drain=drain, http=http, log_format=log_format
    )
