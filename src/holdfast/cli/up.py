"""`holdfast up`"""

from __future__ import annotations

import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.api import serve
from holdfast.apps.telemetry import begin_telemetry
from holdfast.apps.up import up
from holdfast.settings import Settings, settings


def command(
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--no-stay", help="Stay up after the demo, with its API; default: on a terminal."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="On which port the control plane listens.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Where the embedded Postgres keeps its data.", show_default=False)
    ] = None,
    dsn: Annotated[
        str | None, typer.Option("--dsn", help="This database instead of the embedded one.", show_default=False)
    ] = None,
    play: Annotated[bool, typer.Option("--demo/--no-demo", help="Play the demo first.")] = True,
) -> None:
    """Start everything on this machine and play the demo; on a terminal the control plane stays up after it."""
    said = {"http_port": port, "data_dir": data, "database_url": dsn}
    console = Console()
    chosen = settings().model_copy(update={name: value for name, value in said.items() if value is not None})

    def control_plane(url: str) -> None:
        begin_telemetry(chosen)
        serve(
            url,
            _on_a_free_port(chosen, console),
            version("holdfast"),
            lambda text: console.print(f"  {text}", markup=False, soft_wrap=True),
        )

    stays = sys.stdout.isatty() if stay is None else stay
    well = up(chosen, console, stay=control_plane if stays else None, play=play)
    raise typer.Exit(0 if well else 1)


def _on_a_free_port(chosen: Settings, console: Console) -> Settings:
    """The same settings, with another port if theirs is taken: a first look must not fail on that."""
    if _can_bind(chosen.http_host, chosen.http_port):
        return chosen
    with socket.socket() as free:
        free.bind((chosen.http_host, 0))
        port = free.getsockname()[1]
    console.print(f"  [dim]port {chosen.http_port} is taken; the control plane listens on {port}[/]")
    return chosen.model_copy(update={"http_port": port})


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
