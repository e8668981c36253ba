"""The command line: arguments in, one of the programs in apps/ out. One file per noun."""

from __future__ import annotations

import sys

import psycopg
import typer
from alembic.util import CommandError
from rich.console import Console
from rich.text import Text

from holdfast.cli import auth, db, periodic, remote_worker, serve, up, worker
from holdfast.errors import HoldfastError

app = typer.Typer(
    help="Fenced background jobs in Postgres.", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False
)
app.add_typer(db.app, name="db")
worker.app.command("remote")(remote_worker.command)
app.add_typer(worker.app, name="worker")
app.add_typer(periodic.app, name="periodic")
app.add_typer(periodic.scheduler, name="scheduler")
app.add_typer(auth.app, name="auth")
app.command("serve")(serve.command)
app.command("up")(up.command)


def main() -> None:
    """Run the command line; an error that we raise on purpose is a sentence and not a traceback."""
    try:
        app()
    except (HoldfastError, psycopg.OperationalError, CommandError) as error:
        text = str(error).strip() or type(error).__name__
        Console(stderr=True).print("[bold red]error:[/]", Text(text), highlight=False, soft_wrap=True)
        sys.exit(1)
