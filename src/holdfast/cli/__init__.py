"""The command line: arguments in, one of the programs in apps/ out. One file per noun."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from holdfast.cli import db, up
from holdfast.errors import HoldfastError

app = typer.Typer(
    help="Fenced background jobs in Postgres.", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False
)
app.add_typer(db.app, name="db")
app.command("up")(up.command)


def main() -> None:
    """Run the command line; an error that we raise on purpose is a sentence and not a traceback."""
    try:
        app()
    except HoldfastError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
