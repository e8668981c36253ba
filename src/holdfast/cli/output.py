"""How everything is shown: the same rows as a table for people, or as text for programs.

Data goes to standard output and everything else to standard error, so that a pipe carries nothing but data. On a terminal a
table is made; into a pipe go lines with tabs, without headings and with whole values. What jobs say of themselves is text from
strangers: control characters are taken out before a terminal sees them.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import yaml  # type: ignore[import-untyped]
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.times import clock_time, moment, relative, took

Row = Mapping[str, Any]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
EVERYTHING = 100_000  # columns; a terminal breaks the lines by itself
LONGEST_CELL = 60


class Format(StrEnum):
    """How to show it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"
    CSV = "csv"
    TSV = "tsv"


# One colour for one meaning, whatever the word: in hand, waiting, well, wrong, over.
STYLES = {
    **dict.fromkeys(("running", "submitted", "claimed", "creating", "alive"), "cyan"),
    **dict.fromkeys(("paused", "drained", "quiet"), "yellow"),
    **dict.fromkeys(("blocked", "partial", "stale", "retrying", "cancelling", "warning"), "yellow"),
    **dict.fromkeys(("completed", "ready", "done", "ok", "healthy", "success"), "green"),
    **dict.fromkeys(
        ("failed", "denied", "quarantined", "unhealthy", "silent", "error", "critical", "revoked", "expired"), "red"
    ),
    **dict.fromkeys(("cancelled", "stopped", "info", "debug"), "dim"),
}


class Kind(StrEnum):
    """What a value is, as far as showing it goes."""

    TEXT = "text"
    WORD = "word"  # coloured by its meaning
    TIME = "time"
    SECONDS = "seconds"
    NUMBER = "number"
    PERCENT = "percent"


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a row: its title, where it comes from, and what it is."""

    title: str
    get: str | Callable[[Row], Any]
    kind: Kind = Kind.TEXT
    wide: bool = False  # shown only when there is room: wide, csv, and one thing by itself
    long: bool = False  # may take the room that the others leave

    def of(self, row: Row) -> Any:
        return row.get(self.get) if isinstance(self.get, str) else self.get(row)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rows of one noun are shown."""

    noun: str
    columns: Sequence[Column]
    key: str = "id"
    empty: str = "Nothing there."

    def name(self, row: Row) -> str:
        return f"{self.noun}/{row[self.key]}"


class Clock(Protocol):
    """Whoever knows what time it is: the one whom we asked, never this terminal."""

    def now(self) -> datetime: ...


class Timeless:
    """For rows without times: nobody needs to be asked for one."""

    def now(self) -> datetime:
        return datetime.min.replace(tzinfo=UTC)


class Output:
    """Where a command's words and rows go."""

    def __init__(
        self, format: Format | None = None, *, color: bool = True, headers: bool | None = None, utc: bool = False,
        quiet: bool = False,
    ) -> None:  # fmt: skip
        self.is_terminal = sys.stdout.isatty()
        self.format = format or (Format.TABLE if self.is_terminal else Format.TSV)
        wide = EVERYTHING if self.format is Format.WIDE and not self.is_terminal else None
        self.console = Console(file=sys.stdout, no_color=not color or None, highlight=False, emoji=False, width=wide)
        self.errors = Console(file=sys.stderr, no_color=not color or None, highlight=False, emoji=False)
        self._headers = (self.format is not Format.TSV) if headers is None else headers
        self._zone = UTC if utc else None
        self._quiet = quiet

    @property
    def for_people(self) -> bool:
        return self.format in (Format.TABLE, Format.WIDE)

    # ---- words ------------------------------------------------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        """A sentence for people, beside the data."""
        if not self._quiet:
            self.errors.print(Text(_plain(text), style=style), soft_wrap=True)

    def mistake(self, text: str) -> None:
        """One of the things that are wrong, said also to whoever wants nothing but data."""
        self.errors.print(Text(_plain(text), style="red"), soft_wrap=True)

    def hint(self, command: str) -> None:
        """The next likely command; only for somebody who sits there."""
        if self.errors.is_terminal and self.for_people:
            self.say(f"next: {command}", "dim")

    # ---- data -------------------------------------------------------------------------------------------------------

    def rows(self, shape: Shape, rows: Sequence[Row], clock: Clock, *, single: bool = False) -> None:
        """Many of a kind; or a `single` one in the same columns, which is not a list for programs."""
        plain = rows[0] if single else list(rows)
        match self.format:
            case Format.TABLE | Format.WIDE if not rows:
                self.say(shape.empty, "dim")
            case Format.TABLE | Format.WIDE:
                self.console.print(self.table(shape, rows, clock.now()), soft_wrap=self.format is Format.WIDE)
            case Format.JSON:
                self._write(json.dumps(plain, indent=2, ensure_ascii=False))
            case Format.YAML:
                self._write(_yaml(plain))
            case _:
                self._lines(shape, rows)

    def one(self, shape: Shape, row: Row, clock: Clock) -> None:
        """One thing by itself: a line for each of its values."""
        match self.format:
            case Format.TABLE | Format.WIDE:
                self.console.print(self.card(shape, row, clock.now()))
            case Format.JSON:
                self._write(json.dumps(row, indent=2, ensure_ascii=False))
            case Format.YAML:
                self._write(_yaml(dict(row)))
            case Format.TSV:
                for column in shape.columns:
                    self._write(f"{column.title.lower()}\t{_flat(_raw(column.of(row)))}")
            case _:
                self._lines(shape, [row])

    def value(self, name: str, value: Any) -> None:
        """A value whose form is its own, such as a sentence."""
        match self.format:
            case Format.JSON | Format.JSONL:
                self._write(json.dumps({name: value}, ensure_ascii=False))
            case Format.YAML:
                self._write(_yaml({name: value}))
            case _ if self.for_people:
                self.console.print(Text(_plain(str(value))), soft_wrap=True)
            case _:
                self._write(_flat(_raw(value)))

    def screen(self, made: RenderableType, data: Row) -> None:
        """Something that is laid out for people by its command, and plain data for programs."""
        match self.format:
            case Format.TABLE | Format.WIDE:
                self.console.print(made)
            case Format.JSON:
                self._write(json.dumps(data, indent=2, ensure_ascii=False))
            case Format.JSONL:
                self._write(json.dumps(data, ensure_ascii=False))
            case Format.YAML:
                self._write(_yaml(dict(data)))
            case _:
                for name, value in _leaves(data):
                    self._write(f"{name}\t{_flat(_raw(value))}")

    def more(self, shape: Shape, rows: Sequence[Row], *, is_first: bool) -> None:
        """Rows that go on for as long as the command does: headings once, and JSON as a line for each."""
        if self.format in (Format.JSON, Format.YAML):
            for row in rows:
                self.changed(row)
            return
        headers, self._headers = self._headers, self._headers and is_first
        self._lines(shape, rows)
        self._headers = headers

    def said(self, at: datetime, word: str, text: str) -> None:
        """Something that somebody said at a time, whole; what is below its first line cannot look like another."""
        head = Text.assemble((clock_time(at, self._zone), "dim"), " ", (f"{word:<8}", STYLES.get(word, "")), " ")
        self.console.print(head + Text(_plain(text).replace("\n", "\n    ")), soft_wrap=True)

    def changed(self, row: Row) -> None:
        """A row that is not what it was, for whoever watches through a pipe."""
        self._write(json.dumps(row, ensure_ascii=False))

    # ---- forms ------------------------------------------------------------------------------------------------------

    def table(self, shape: Shape, rows: Sequence[Row], now: datetime) -> Table:
        wide = self.format is Format.WIDE
        columns = [column for column in shape.columns if wide or not column.wide]
        stretch = not wide and any(column.long for column in columns)
        table = Table(
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
        card = Table.grid(padding=(0, 2, 0, 0))
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
            return Text("–" if one_line else "", style="dim")
        match column.kind:
            case Kind.TIME:
                return Text(self._time(moment(value) if isinstance(value, str) else value, now, brief=one_line))
            case Kind.SECONDS:
                return Text(took(float(value)))
            case Kind.PERCENT:
                return Text(f"{value:.0%}")
            case Kind.NUMBER:
                return Text(f"{value:,}" if isinstance(value, int | float) else str(value))
            case Kind.WORD:
                return Text(_plain(str(value)), style=STYLES.get(str(value).split(" ")[0], ""))
            case _:
                return Text(_flat(_raw(value)) if one_line else _plain(_spread(value)))

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
            lines = [[_flat(_raw(column.of(row))) for column in columns] for row in rows]
            for line in [[column.title.lower() for column in columns], *lines] if self._headers else lines:
                self._write("\t".join(line))

    def _csv(self, shape: Shape, rows: Sequence[Row]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self._headers:
            writer.writerow([column.title.lower() for column in shape.columns])
        writer.writerows([_raw(column.of(row)) for column in shape.columns] for row in rows)
        if text.getvalue():
            self._write(text.getvalue().removesuffix("\n"))

    def _write(self, text: str) -> None:
        """Data as it is; but a terminal obeys what it is sent, whatever the format."""
        self.console.file.write((_plain(text) if self.is_terminal else text) + "\n")
        self.console.file.flush()


def _leaves(data: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """The values of nested data with the way to each: jobs.pending, workers.0.name."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(data, list) and data:
        for number, value in enumerate(data):
            yield from _leaves(value, f"{name}.{number}")
    else:
        yield name, data


def _raw(value: Any) -> str:
    """A value as a program wants it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _spread(value: Any) -> str:
    """A value with room around it."""
    return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict | list) else _raw(value)


def _plain(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return CONTROL.sub("�", text)


def _flat(text: str) -> str:
    """Text on one line and in one column."""
    return _plain(" ".join(text.split()) if any(c in text for c in "\t\n\r") else text)


def _yaml(data: Any) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=EVERYTHING)
    return text.removesuffix("\n")
