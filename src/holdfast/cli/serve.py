"""`holdfast serve`"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.api import serve
from holdfast.apps.database import database
from holdfast.apps.telemetry import begin_telemetry
from holdfast.settings import settings


def command(
    url: Annotated[
        str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; default: HOLDFAST_HTTP_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Which port; default: HOLDFAST_HTTP_PORT.")] = None,
    loops: Annotated[bool, typer.Option("--loops/--no-loops", help="Run the periodic loops here, too.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines, also on a terminal.")] = False,
) -> None:
    """Serve the control plane: the HTTP API, its streams and its metrics, until SIGTERM or Ctrl-C."""
    given = {"database_url": url, "http_host": host, "http_port": port}
    chosen = settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    begin_telemetry(chosen, as_json=as_json)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with database(chosen, console) as address:
        serve(address, chosen, version("holdfast"), lambda text: console.print(text, markup=False), loops=loops)
