"""What every verb has: the options for the way and the output, and the session that they make.

A verb is a function whose first parameter is its `Session`; the shared options are put behind its own, so that they stand in
every help text and can be given anywhere behind the verb.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Annotated, Any, get_type_hints

import typer

from holdfast.cli.output import Format, Output, Row, Shape
from holdfast.cli.times import length, moment
from holdfast.cli.way import OverHttp, Way, every, open_way
from holdfast.errors import UsageError
from holdfast.settings import settings

PANEL = "For every command"
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]
Since = Annotated[str | None, typer.Option("--since", help="No older than this, such as 24h.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All of them, however many.")]


@dataclass
class Session:
    """One run of one command: where its words go, and its way to the system, opened when it is first used."""

    out: Output
    dsn: str | None = None
    api_url: str | None = None
    _way: Way | None = field(default=None, repr=False)

    @property
    def way(self) -> Way:
        if self._way is None:
            self._way = open_way(settings(), dsn=self.dsn, api_url=self.api_url, say=self.out.say)
        return self._way

    @property
    def is_over_http(self) -> bool:
        """Whether it was the API that answered, and not the database."""
        return isinstance(self._way, OverHttp)

    def close(self) -> None:
        if self._way is not None:
            self._way.close()
            self._way = None

    def get(self, path: str, **params: Any) -> Any:
        """The data at this path."""
        return self.way.ask("GET", path, params=params).data

    def listed(self, path: str, *, most: int | None, **params: Any) -> list[dict[str, Any]]:
        """The rows of a list, up to `most`."""
        return [*every(self.way, path, params, most=most)]

    def since(self, path: str, ago: str | None, column: str, *, most: int | None, **params: Any) -> list[dict[str, Any]]:
        """The rows of a list that has its newest first, up to `most`, and no older than so long ago by the clock over there."""
        rows = every(self.way, path, params, most=most)
        if ago is None:
            return [*rows]
        oldest = self.way.now() - length(ago)
        return [*takewhile(lambda row: moment(row[column]) >= oldest, rows)]

    def act(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        use_case: str | None = None,
        **params: Any,
    ) -> Any:
        """Change something; what is there now."""
        plain = None if body is None else {name: value for name, value in body.items() if value is not None}
        return self.way.ask(method, path, params=params, body=plain, key=key, use_case=use_case).data

    def rows(self, shape: Shape, rows: list[dict[str, Any]]) -> None:
        self.out.rows(shape, rows, self.way)

    def one(self, shape: Shape, row: Row) -> None:
        self.out.one(shape, row, self.way)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something is destroyed; without a terminal nobody can answer, so the command must say it."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(f"{question} Nobody is here to answer: pass --yes")
        if not typer.confirm(question, err=True):
            raise typer.Exit(1)


def _shared(
    *,
    output: Annotated[
        Format | None,
        typer.Option("--output", "-o", help="How to show it; default: table on a terminal, else tsv.", rich_help_panel=PANEL),
    ] = None,
    dsn: Annotated[
        str | None, typer.Option("--dsn", help="Ask this database itself, without the API.", rich_help_panel=PANEL)
    ] = None,
    api_url: Annotated[
        str | None, typer.Option("--api-url", help="Ask this API; default: HOLDFAST_API_URL.", rich_help_panel=PANEL)
    ] = None,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Without colours; NO_COLOR=1 is the same.", rich_help_panel=PANEL)
    ] = False,
    headers: Annotated[
        bool | None, typer.Option("--headers/--no-headers", help="Headings; tsv has none.", rich_help_panel=PANEL)
    ] = None,
    utc: Annotated[
        bool, typer.Option("--utc", help="Times in UTC instead of this terminal's zone.", rich_help_panel=PANEL)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but data.", rich_help_panel=PANEL)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=PANEL)] = False,
) -> None:
    """The options that every verb has."""


@contextmanager
def _session(output: Format | None, dsn: str | None, api_url: str | None, **look: Any) -> Iterator[Session]:
    out = Output(output, color=not look["no_color"], headers=look["headers"], utc=look["utc"], quiet=look["quiet"])
    if not look["debug"]:  # what goes wrong is said by the command itself, in one sentence
        logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    session = Session(out, dsn, api_url)
    try:
        yield session
    finally:
        session.close()


def verb(app: typer.Typer, name: str | None = None, **how: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a verb: it gets its `Session`, and the shared options are added to its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own, shared = _parameters(function)[1:], _parameters(_shared)

        @functools.wraps(function)
        def run(**given: Any) -> None:
            look = {parameter.name: given.pop(parameter.name) for parameter in shared}
            with _session(**look) as session:
                function(session, **given)

        run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
        app.command(name, **how)(run)
        return function

    return register


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a function with what their annotations mean, to be given by name."""
    hints = get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters.values()
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in found]
