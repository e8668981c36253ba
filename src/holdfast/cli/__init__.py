"""The command line: arguments in, one of the programs in apps/ or one question to the system out. One file per noun.

The table below is all of it. A noun's module is loaded when somebody uses it, so that `holdfast --help` is there at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from holdfast.cli.exits import Exit, Told, exit_of
from holdfast.errors import HoldfastError

LOOK, STEER, RUN = "Look", "Steer", "Run and set up"

# noun: its panel in the help, its module (and the Typer in it, if that is not `app`), and what it is for
COMMANDS: dict[str, tuple[str, str, str]] = {
    "status": (LOOK, "status", "Show everything that matters on one screen."),
    "doctor": (LOOK, "doctor", "Look for trouble, and say how to mend it."),
    "job": (LOOK, "job", "Jobs: look at them, enqueue, wait, retry, cancel, recover."),
    "failure": (LOOK, "failure", "Failures, grouped by what they have in common."),
    "pipeline": (LOOK, "pipeline", "Pipelines: jobs that follow jobs."),
    "export": (LOOK, "export", "Exports: the result of SQL as Parquet files."),
    "lock": (LOOK, "lock", "Locks: who holds them, and who waits."),
    "kind": (LOOK, "kind", "Kinds of jobs: who can run them, and what waits."),
    "periodic": (LOOK, "periodic", "Periodic loops: look at them, run one now, pause one."),
    "audit": (LOOK, "audit", "Who did what, and why."),
    "mapping": (LOOK, "mapping", "Mappings: which nodes and edges a graph has, and the SQL of each."),
    "snapshot": (LOOK, "snapshot", "Snapshots: one run of a mapping, as Parquet files."),
    "schema": (LOOK, "schema", "What the engines' catalogs hold: browse and search."),
    "drain": (STEER, "control:drain", "Take no new jobs; what is there runs to its end."),
    "undrain": (STEER, "control:undrain", "Take new jobs again."),
    "pause": (STEER, "control:pause", "Start no more jobs of a kind; what runs, runs on."),
    "resume": (STEER, "control:resume", "Undo pause and drain of a kind."),
    "up": (RUN, "up", "Start everything on this machine and play the demo."),
    "serve": (RUN, "serve", "Serve the control plane: the HTTP API, its streams and its metrics."),
    "worker": (RUN, "workers", "Run jobs, and look at who does."),
    "scheduler": (RUN, "scheduler", "Run periodic loops."),
    "db": (RUN, "db", "The schema: bring it up to date, look at it, print it."),
    "auth": (RUN, "auth", "Sign in, and make or revoke API tokens."),
    "completion": (RUN, "completion", "Let your shell complete words."),
    "config": (RUN, "config", "Settings of this process, and values that may change while everything runs."),
}
PROGRAMS = (("up",), ("serve",), ("worker", "run"), ("worker", "remote"), ("scheduler", "run"))
ALSO = {
    f"{noun}s": noun for noun in ("job", "failure", "pipeline", "lock", "worker", "mapping", "snapshot")
}  # what fingers type


class Unloaded(TyperCommand):
    """A command of which nothing but its name and purpose is known yet."""

    def load(self) -> Any:
        """The command itself."""
        assert self.name is not None
        place, _, attribute = COMMANDS[self.name][1].partition(":")
        module = import_module(f"holdfast.cli.{place}")
        found = getattr(module, attribute or "app", None)
        if found is None:  # a module of one command
            found = typer.Typer()
            found.command()(module.command)
        found._add_completion = False
        loaded = get_command(found)
        loaded.name = self.name
        return loaded


class Table(TyperGroup):
    """The table as a group of commands that are loaded when they are used."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {
            name: Unloaded(name, callback=None, help=purpose, rich_help_panel=panel)
            for name, (panel, _, purpose) in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first word names, loaded."""
        name, command, rest = super().resolve_command(ctx, [ALSO.get(args[0], args[0]), *args[1:]])
        return name, command.load() if isinstance(command, Unloaded) else command, rest

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    cls=Table,
    help="Fenced background jobs in Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
def _holdfast(
    show_version: Annotated[
        bool, typer.Option("--version", "-V", callback=_say_version, is_eager=True, help="Show the version, and no more.")
    ] = False,
) -> None:
    """Fenced background jobs in Postgres."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error is a sentence that says what to do, and not a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="holdfast")
    except Exception as error:
        if "--debug" in given:
            raise
        tell(error)
        sys.exit(Exit.FAILED if is_program(given) else exit_of(error))


def is_program(given: Sequence[str]) -> bool:
    """Whether these words start a program, which ends with 0 or 1 for whoever started it, rather than ask a question. Pure."""
    return any(tuple(given[: len(words)]) == words for words in PROGRAMS)


def tell(error: Exception) -> None:
    """Say what went wrong and what to do about it, on standard error."""
    text = str(error).strip() or type(error).__name__
    advice = advice_of(error) if isinstance(error, Told) else None
    is_known = isinstance(error, HoldfastError) or type(error).__module__.startswith(("psycopg", "alembic"))
    if not is_known:
        text, advice = f"{type(error).__name__}: {text}", "This is a fault of ours; --debug shows where."
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), text))
    if advice:
        console.print(Text(f"  {advice}", style="dim"))


def advice_of(told: Told) -> str | None:
    """What to do, with the seconds to wait where the server named them. Pure."""
    if told.wants("reason"):
        return "Say why with --reason."
    seconds = told.problem.get("retry_after")
    return told.advice if seconds is None else f"Try again in {seconds} s."


__all__ = ["Exit", "app", "main"]
