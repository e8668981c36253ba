"""Print rows as a table for people, or as text for programs.

Data goes to standard output, messages to standard error, so that a pipe carries data only. On a terminal the default is a
table; in a pipe it is tab-separated lines without headers and with complete values. Text of jobs is not trusted: control
characters are replaced before it goes to a terminal. rich and PyYAML are imported when they are used.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.toolkit.cli.text import UNLIMITED, flat, leaves, plain, raw, spread, yaml_of
from holdfast.toolkit.cli.times import clock_time, moment, relative, took

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Row = Mapping[str, Any]
LONGEST_CELL = 60


class Format(StrEnum):
    """Output formats."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"
    CSV = "csv"
    TSV = "tsv"


# One colour for each meaning: active, waiting, good, bad, ended.
STYLES = {
    **dict.fromkeys(("running", "submitted", "claimed", "creating", "alive"), "cyan"),
    **dict.fromkeys(("paused", "drained", "quiet"), "yellow"),
    **dict.fromkeys(("blocked", "partial", "stale", "retrying", "cancelling", "warning"), "yellow"),
    **dict.fromkeys(("completed", "ready", "done", "ok", "healthy", "success"), "green"),
    **dict.fromkeys(("failed", "denied", "quarantined", "unhealthy", "lost", "error", "critical", "revoked", "expired"), "red"),
    **dict.fromkeys(("cancelled", "stopped", "info", "debug"), "dim"),
}


class Kind(StrEnum):
    """How a value is formatted."""

    TEXT = "text"
    WORD = "word"  # coloured by its meaning
    TIME = "time"
    SECONDS = "seconds"
    NUMBER = "number"
    PERCENT = "percent"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, where its value comes from, and how it is formatted."""

    title: str
    get: str | Callable[[Row], Any]
    kind: Kind = Kind.TEXT
    wide: bool = False  # shown only in wide, csv, and for a single object
    long: bool = False  # takes the width that the others leave

    def of(self, row: Row) -> Any:
        return row.get(self.get) if isinstance(self.get, str) else self.get(row)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rows of one noun are printed."""

    noun: str
    columns: Sequence[Column]
    key: str = "id"
    empty: str = "None."

    def name(self, row: Row) -> str:
        return f"{self.noun}/{row[self.key]}"


class Clock(Protocol):
    """The server's clock; never the one of this machine."""

    def now(self) -> datetime: ...


class NoClock:
    """For rows without times."""

    def now(self) -> datetime:
        return datetime.min.replace(tzinfo=UTC)


class Output:
    """Prints the messages and rows of a command."""

    def __init__(
        self, format: Format | None = None, *, color: bool = True, headers: bool | None = None, utc: bool = False,
        quiet: bool = False,
    ) -> None:  # fmt: skip
        self.is_terminal = sys.stdout.isatty()
        self.is_default = format is None
        self.format = format or (Format.TABLE if self.is_terminal else Format.TSV)
        self._color = color
        self._headers = (self.format is not Format.TSV) if headers is None else headers
        self._zone = UTC if utc else None
        self._quiet = quiet

    @cached_property
    def console(self) -> Console:
        """Standard output."""
        wide = UNLIMITED if self.format is Format.WIDE and not self.is_terminal else None
        return _console(sys.stdout, self._color, wide)

    @cached_property
    def errors(self) -> Console:
        """Standard error."""
        return _console(sys.stderr, self._color, None)

    @property
    def for_people(self) -> bool:
        return self.format in (Format.TABLE, Format.WIDE)

    # ---- messages ------------------------------------------------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        """A message for people, on standard error."""
        if not self._quiet:
            self._print_message(text, style)

    def mistake(self, text: str) -> None:
        """One of several errors; printed also with --quiet."""
        self._print_message(text, "red")

    def _print_message(self, text: str, style: str) -> None:
        if sys.stderr.isatty():
            self.errors.print(_text(plain(text), style), soft_wrap=True)
        else:
            sys.stderr.write(f"{plain(text)}\n")

    def status(self, text: str) -> Any:
        """A spinner on standard error while the block runs; nothing if that is not a terminal."""
        return self.errors.status(text) if sys.stderr.isatty() else _NoStatus()

    def hint(self, command: str) -> None:
        """The next likely command; only on a terminal."""
        if sys.stderr.isatty() and self.for_people:
            self.say(f"next: {command}", "dim")

    # ---- data -------------------------------------------------------------------------------------------------------

    def rows(self, shape: Shape, rows: Sequence[Row], clock: Clock, *, single: bool = False) -> None:
        """A list; with `single` one object in the same columns, which JSON shows as an object."""
        data = rows[0] if single else list(rows)
        match self.format:
            case Format.TABLE | Format.WIDE if not rows:
                self.say(shape.empty, "dim")
            case Format.TABLE | Format.WIDE:
                self.console.print(self.table(shape, rows, clock.now()), soft_wrap=self.format is Format.WIDE)
            case Format.JSON:
                self._write(json.dumps(data, indent=2, ensure_ascii=False))
            case Format.YAML:
                self._write(yaml_of(data))
            case _:
                self._lines(shape, rows)

    def one(self, shape: Shape, row: Row, clock: Clock) -> None:
        """One object: a line for each of its values."""
        match self.format:
            case Format.TABLE | Format.WIDE:
                self.console.print(self.card(shape, row, clock.now()))
            case Format.JSON:
                self._write(json.dumps(row, indent=2, ensure_ascii=False))
            case Format.YAML:
                self._write(yaml_of(dict(row)))
            case Format.TSV:
                for column in shape.columns:
                    self._write(f"{column.title.lower()}\t{flat(raw(column.of(row)))}")
            case _:
                self._lines(shape, [row])

    def value(self, name: str, value: Any) -> None:
        """A single value, such as a sentence."""
        match self.format:
            case Format.JSON | Format.JSONL:
                self._write(json.dumps({name: value}, ensure_ascii=False))
            case Format.YAML:
                self._write(yaml_of({name: value}))
            case _ if self.for_people:
                self.console.print(_text(plain(str(value))), soft_wrap=True)
            case _:
                self._write(flat(raw(value)))

    def screen(self, made: RenderableType, data: Row) -> None:
        """A layout made by the command for people, and plain data for programs."""
        match self.format:
            case Format.TABLE | Format.WIDE:
                self.console.print(made)
            case _ if self.is_default:  # in a pipe, as of `watch`: the same screen as plain text
                self.console.print(made)
            case Format.JSON:
                self._write(json.dumps(data, indent=2, ensure_ascii=False))
            case Format.JSONL:
                self._write(json.dumps(data, ensure_ascii=False))
            case Format.YAML:
                self._write(yaml_of(dict(data)))
            case _:
                for name, value in leaves(data):
                    self._write(f"{name}\t{flat(raw(value))}")

    def more(self, shape: Shape, rows: Sequence[Row], *, is_first: bool) -> None:
        """More rows of a list that grows: headers once, and JSON as one line for each row."""
        if self.format in (Format.JSON, Format.YAML):
            for row in rows:
                self.changed(row)
            return
        headers, self._headers = self._headers, self._headers and is_first
        self._lines(shape, rows)
        self._headers = headers

    def said(self, at: datetime, word: str, text: str) -> None:
        """One log line; its further lines are indented, so that they cannot look like other log lines."""
        head = _assembled((clock_time(at, self._zone), "dim"), " ", (f"{word:<8}", STYLES.get(word, "")), " ")
        self.console.print(head + _text(plain(text).replace("\n", "\n    ")), soft_wrap=True)

    def changed(self, row: Row) -> None:
        """A row that has changed, for `--watch` into a pipe."""
        self._write(json.dumps(row, ensure_ascii=False))

    # ---- layout -----------------------------------------------------------------------------------------------------

    def table(self, shape: Shape, rows: Sequence[Row], now: datetime) -> Table:
        wide = self.format is Format.WIDE
        columns = [column for column in shape.columns if wide or not column.wide]
        stretch = not wide and any(column.long for column in columns)
        table: Table = import_module("rich.table").Table(
            box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", show_header=self._headers, expand=stretch
        )
        for column in columns:
            table.add_column(
                column.title,
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if column.kind in (Kind.NUMBER, Kind.PERCENT) else "left",
                max_width=None if wide or column.long else LONGEST_CELL,
                ratio=1 if stretch and column.long else None,  # the others get what they need
            )
        for row in rows:
            table.add_row(*(self._cell(column, row, now, one_line=True) for column in columns))
        return table

    def card(self, shape: Shape, row: Row, now: datetime) -> Table:
        card: Table = import_module("rich.table").Table.grid(padding=(0, 2, 0, 0))
        card.add_column(style="dim", no_wrap=True)
        card.add_column(overflow="fold")
        for column in shape.columns:
            value = column.of(row)
            if value is not None and value != "":
                card.add_row(column.title.lower(), self._cell(column, row, now, one_line=False))
        return card

    def _cell(self, column: Column, row: Row, now: datetime, *, one_line: bool) -> Text:
        value = column.of(row)
        if value is None or value == "":
            return _text("–" if one_line else "", style="dim")
        match column.kind:
            case Kind.TIME:
                return _text(self._time(moment(value) if isinstance(value, str) else value, now, brief=one_line))
            case Kind.SECONDS:
                return _text(took(float(value)))
            case Kind.PERCENT:
                return _text(f"{value:.0%}")
            case Kind.NUMBER:
                return _text(f"{value:,}" if isinstance(value, int | float) else str(value))
            case Kind.WORD:
                return _text(plain(str(value)), style=STYLES.get(str(value).split(" ")[0], ""))
            case _:
                return _text(flat(raw(value)) if one_line else plain(spread(value)))

    def _time(self, at: datetime, now: datetime, *, brief: bool) -> str:
        if brief and self.format is not Format.WIDE:
            return relative(at, now)
        shown = clock_time(at, self._zone)
        return shown if brief else f"{shown} ({relative(at, now)})"

    def _lines(self, shape: Shape, rows: Sequence[Row]) -> None:
        if self.format is Format.JSONL:
            for row in rows:
                self._write(json.dumps(row, ensure_ascii=False))
        elif self.format is Format.NAME:
            for row in rows:
                self._write(shape.name(row))
        elif self.format is Format.CSV:
            self._csv(shape, rows)
        else:
            columns = [column for column in shape.columns if not column.wide]
            lines = [[flat(raw(column.of(row))) for column in columns] for row in rows]
            for line in [[column.title.lower() for column in columns], *lines] if self._headers else lines:
                self._write("\t".join(line))

    def _csv(self, shape: Shape, rows: Sequence[Row]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self._headers:
            writer.writerow([column.title.lower() for column in shape.columns])
        writer.writerows([raw(column.of(row)) for column in shape.columns] for row in rows)
        if text.getvalue():
            self._write(text.getvalue().removesuffix("\n"))

    def _write(self, text: str) -> None:
        """Data as it is; on a terminal without control characters, whatever the format."""
        sys.stdout.write((plain(text) if self.is_terminal else text) + "\n")
        sys.stdout.flush()


class _NoStatus(nullcontext[Any]):
    """No spinner."""

    def __enter__(self) -> Any:
        return self

    def update(self, text: str) -> None:
        """Show nothing."""


def _console(file: Any, color: bool, width: int | None) -> Console:
    made: Console = import_module("rich.console").Console(
        file=file, no_color=not color or None, highlight=False, emoji=False, width=width
    )
    return made


def _text(text: str, style: str = "") -> Text:
    made: Text = import_module("rich.text").Text(text, style=style)
    return made


def _assembled(*parts: Any) -> Text:
    made: Text = import_module("rich.text").Text.assemble(*parts)
    return made
