"""The command line: parses arguments and runs one of the programs in apps/, or one request. One file per noun.

`table.py` lists the commands. A command's module is imported when the command is used, so that `holdfast --help` starts fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from holdfast.cli.errors import print_error
from holdfast.cli.parameters import validate_when_needed
from holdfast.cli.table import commands, plurals
from holdfast.distribution import VERSION
from holdfast.extras import missing_extra
from holdfast.toolkit.cli.exit_codes import Exit, exit_of

PROGRAMS = (("up",), ("serve",), ("worker", "run"), ("worker", "remote"), ("scheduler", "run"))


class LazyCommand(TyperCommand):
    """A command of which only the name and the purpose are known until it is used."""

    def load(self) -> Any:
        """The command itself."""
        assert self.name is not None
        place, _, attribute = commands()[self.name].place.partition(":")
        module = import_module(place)
        found = getattr(module, attribute or "app", None) or module.command
        if not isinstance(found, typer.Typer):  # a module of one command
            function, found = found, typer.Typer()
            found.command()(function)
        found._add_completion = False
        loaded = get_command(found)
        loaded.name = self.name
        return loaded


class CommandTable(TyperGroup):
    """The table as a group of commands that are loaded when they are used."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {
            name: LazyCommand(name, callback=None, help=entry.purpose, rich_help_panel=entry.panel)
            for name, entry in commands().items()
        }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        validate_when_needed(self, ctx)  # here, because Typer adds the options for completion after __init__
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first argument names, loaded."""
        name, command, rest = super().resolve_command(ctx, [plurals().get(args[0], args[0]), *args[1:]])
        if isinstance(command, LazyCommand):
            command = command.load()
            validate_when_needed(command, ctx)
        return name, command, rest

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    cls=CommandTable,
    help="Fenced background jobs in Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"holdfast {VERSION}")
        raise typer.Exit


@app.callback()
def _holdfast(
    show_version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fenced background jobs in Postgres."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An error is printed as a sentence with advice; with --debug as a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="holdfast")
    except Exception as error:
        if "--debug" in given:
            raise
        if isinstance(error, ModuleNotFoundError):
            error = missing_extra(error) or error
        print_error(error)
        sys.exit(Exit.FAILED if is_program(given) else exit_of(error))


def is_program(given: Sequence[str]) -> bool:
    """Whether these arguments start a program, which exits with 0 or 1, and not a command. Pure."""
    return any(tuple(given[: len(words)]) == words for words in PROGRAMS)


__all__ = ["Exit", "app", "main"]
