"""`holdfast serve`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.api import serve
from holdfast.apps.database import database
from holdfast.apps.telemetry import begin_telemetry
from holdfast.cli.program_settings import program_settings
from holdfast.distribution import VERSION
from holdfast.toolkit.cli.verb import Dsn, LogFormatOption, program

app = typer.Typer()


@program(app)
def serve_command(
    dsn: Dsn = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: HOLDFAST_HTTP_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; default: HOLDFAST_HTTP_PORT.")] = None,
    loops: Annotated[bool, typer.Option("--loops/--no-loops", help="Run the periodic loops in this process, too.")] = True,
    log_format: LogFormatOption = None,
) -> None:
    """Serve the HTTP API, its event streams and metrics until SIGTERM or Ctrl-C."""
    chosen = program_settings(dsn=dsn, http_host=host, http_port=port, log_format=log_format)
    begin_telemetry(chosen)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with database(chosen, console) as address:
        serve(address, chosen, VERSION, lambda text: console.print(text, markup=False), loops=loops)
