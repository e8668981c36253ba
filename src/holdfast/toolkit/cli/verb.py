"""The options that every command has, and the session that they make.

A command is a function whose first parameter is its `Session`. `verb` adds the shared options behind the function's own, so
that they can be given anywhere behind the command. Programs that run until they are stopped are registered with `program`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Any, get_type_hints

import typer

from holdfast.errors import UsageError
from holdfast.toolkit.cli.output import Format, Output, Row, Shape
from holdfast.toolkit.cli.times import length, moment
from holdfast.toolkit.cli.transport import Transport, checked_dsn, iterate, open_transport
from holdfast.toolkit.client.environment import client_settings

PANEL = "Shared options"
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; recorded in the audit log.", show_default=False)]
OptionalReason = Annotated[
    str | None, typer.Option("--reason", help="Why; recorded in the audit log. Required for other users' objects.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only from this long ago until now, such as 24h.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Show all, without a limit.")]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Address of the Postgres database; default: HOLDFAST_DATABASE_URL, or the embedded one.",
        show_default=False,
    ),
]


class LogFormat(StrEnum):
    """How a program writes its log."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        help="auto (text on a terminal, else JSON lines), console or json; default: HOLDFAST_LOG_FORMAT.",
        show_default=False,
    ),
]


@dataclass
class Session:
    """One run of one command: its output and its transport, which is opened when it is first used."""

    out: Output
    dsn: str | None = None
    url: str | None = None
    _transport: Transport | None = field(default=None, repr=False)

    @property
    def transport(self) -> Transport:
        if self._transport is None:
            self._transport = open_transport(client_settings(), dsn=self.dsn, url=self.url, say=self.out.say)
        return self._transport

    @property
    def is_over_http(self) -> bool:
        """Whether the API answered, and not the database."""
        return self._transport is not None and self._transport.is_http

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def get(self, path: str, **params: Any) -> Any:
        """The data at this path."""
        return self.transport.request("GET", path, params=params).data

    def listed(self, path: str, *, most: int | None, **params: Any) -> list[dict[str, Any]]:
        """The rows of a list, up to `most`."""
        return [*iterate(self.transport, path, params, most=most)]

    def since(self, path: str, ago: str | None, column: str, *, most: int | None, **params: Any) -> list[dict[str, Any]]:
        """The rows of a list (newest first), up to `most`, and no older than `ago` by the server's clock."""
        rows = iterate(self.transport, path, params, most=most)
        if ago is None:
            return [*rows]
        oldest = self.transport.now() - length(ago)
        return [*takewhile(lambda row: moment(row[column]) >= oldest, rows)]

    def act(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        role: str | None = None,
        **params: Any,
    ) -> Any:
        """Change something; returns its new state."""
        sent = None if body is None else {name: value for name, value in body.items() if value is not None}
        return self.transport.request(method, path, params=params, body=sent, key=key, role=role).data

    def rows(self, shape: Shape, rows: list[dict[str, Any]]) -> None:
        self.out.rows(shape, rows, self.transport)

    def one(self, shape: Shape, row: Row) -> None:
        self.out.one(shape, row, self.transport)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something is destroyed. Without a terminal, `--yes` is required."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(f"{question} Standard input is not a terminal: pass --yes to confirm")
        if not typer.confirm(question, err=True):
            raise typer.Exit(1)


def _shared(
    *,
    output: Annotated[
        Format | None,
        typer.Option("--output", "-o", help="Output format; default: table on a terminal, else tsv.", rich_help_panel=PANEL),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.", rich_help_panel=PANEL)] = False,
    dsn: Annotated[
        str | None,
        typer.Option("--dsn", help="Connect to this Postgres database directly, without the API.", rich_help_panel=PANEL),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Connect to the API at this address; default: HOLDFAST_API_URL.", rich_help_panel=PANEL),
    ] = None,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Print without colors; the same as NO_COLOR=1.", rich_help_panel=PANEL)
    ] = False,
    headers: Annotated[
        bool | None,
        typer.Option("--headers/--no-headers", help="Print column headers; default: not for tsv.", rich_help_panel=PANEL),
    ] = None,
    utc: Annotated[bool, typer.Option("--utc", help="Show times in UTC instead of local time.", rich_help_panel=PANEL)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print data only, no messages.", rich_help_panel=PANEL)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=PANEL)] = False,
) -> None:
    """The options that every command has."""


@contextmanager
def _session(output: Format | None, dsn: str | None, url: str | None, **look: Any) -> Iterator[Session]:
    if look["as_json"] and output not in (None, Format.JSON):
        raise UsageError(f"--json and -o {output} exclude each other; pass one of them")
    if dsn and url:
        raise UsageError("--dsn and --url exclude each other; pass one of them")
    chosen = Format.JSON if look["as_json"] else output
    out = Output(chosen, color=not look["no_color"], headers=look["headers"], utc=look["utc"], quiet=look["quiet"])
    if not look["debug"]:  # the command reports an error itself, in one sentence
        logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    session = Session(out, None if dsn is None else checked_dsn(dsn), url)
    try:
        yield session
    finally:
        session.close()


def verb(app: typer.Typer, name: str | None = None, **how: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command: it gets its `Session`, and the shared options are added to its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own, shared = _parameters(function)[1:], _parameters(_shared)

        @functools.wraps(function)
        def run(**given: Any) -> None:
            look = {parameter.name: given.pop(parameter.name) for parameter in shared}
            with _session(**look) as session:
                function(session, **given)

        _register(app, name, run, [*own, *shared], how)
        return function

    return register


def _debug(
    *, debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=PANEL)] = False
) -> None:
    """The option that every program has; `holdfast.cli.main` reads it."""


def program(app: typer.Typer, name: str | None = None, **how: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a program, which runs until it is stopped and prints a log instead of data."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            given.pop("debug")
            function(**given)

        _register(app, name, run, [*_parameters(function), *_parameters(_debug)], how)
        return function

    return register


def _register(app: typer.Typer, name: str | None, run: Any, parameters: list[inspect.Parameter], how: Any) -> None:
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, **how)(run)


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a function with their evaluated annotations, as keyword-only parameters."""
    hints = get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters.values()
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in found]
