"""`holdfast up`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from holdfast.apps.up import up
from holdfast.settings import settings


def command(
    stay: Annotated[
        bool | None, typer.Option("--stay/--no-stay", help="Stay up after the demo; default: on a terminal.")
    ] = None,
) -> None:
    """Start everything on this machine and play the demo."""
    console = Console()
    well = up(settings(), console, stay=sys.stdout.isatty() if stay is None else stay)
    raise typer.Exit(0 if well else 1)
