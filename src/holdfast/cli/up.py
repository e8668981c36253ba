"""`holdfast up`"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.api import serve
from holdfast.apps.telemetry import begin_telemetry
from holdfast.apps.up import up
from holdfast.cli.program_settings import program_settings
from holdfast.distribution import VERSION
from holdfast.settings import Settings
from holdfast.toolkit.cli.verb import Dsn, program

app = typer.Typer()


@program(app)
def up_command(
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--no-stay", help="Keep running after the demos, with the API; default: on a terminal."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the API.", show_default=False)] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Data directory of the embedded Postgres.", show_default=False)
    ] = None,
    dsn: Dsn = None,
    play: Annotated[bool, typer.Option("--demo/--no-demo", help="Run the demos first.")] = True,
) -> None:
    """Start everything on this machine and run the demos. On a terminal, the API keeps running until Ctrl-C."""
    console = Console()
    chosen = program_settings(dsn=dsn, http_port=port, data_dir=data)

    def control_plane(url: str) -> None:
        begin_telemetry(chosen)
        serve(
            url,
            _on_a_free_port(chosen, console),
            VERSION,
            lambda text: console.print(f"  {text}", markup=False, soft_wrap=True),
        )

    stays = sys.stdout.isatty() if stay is None else stay
    well = up(chosen, console, stay=control_plane if stays else None, play=play)
    raise typer.Exit(0 if well else 1)


def _on_a_free_port(chosen: Settings, console: Console) -> Settings:
    """The same settings, with a free port if the configured one is taken."""
    if _can_bind(chosen.http_host, chosen.http_port):
        return chosen
    with socket.socket() as free:
        free.bind((chosen.http_host, 0))
        port = free.getsockname()[1]
    console.print(f"  [dim]port {chosen.http_port} is in use; the API listens on {port}[/]")
    return chosen.model_copy(update={"http_port": port})


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
