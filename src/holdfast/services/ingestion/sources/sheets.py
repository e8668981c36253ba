"""XLSX: the first sheet, read row by row in bounded memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import date, datetime, time
from io import StringIO
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from holdfast.extras import lazily
from holdfast.services.ingestion.sources.csv_chunks import LONGEST_RECORD, PIECE, Malformed
from holdfast.services.ingestion.sources.dialect import Dialect, UnreadableFile

openpyxl: Any = lazily("openpyxl")

AT_A_TIME: Final = 2000  # rows
LARGEST_UNPACKED: Final = 4 * 1024**3  # bytes of all parts of a workbook
LARGEST_IN_MEMORY: Final = 256 * 1024**2  # bytes of the parts that openpyxl keeps in memory: texts and styles


class Sheet:
    """The first sheet of a workbook."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.read = path, path.stat().st_size, 0
        self.dialect = Dialect("utf-8", ",", '"', ".")
        refuse_zip_bomb(path)
        self.malformed: list[Malformed] = []
        self.is_trimmed = False
        self.header: list[str] = []
        for number, row in self._rows():
            if any(value is not None for value in row):
                self.header = [text_of(value).strip() for value in _without_empty_end(row)]
                self.first_line = number + 1
                return
        raise UnreadableFile("the first sheet is empty; its first row must have the names of the columns")

    def pieces(self) -> Iterator[bytes]:
        width, out = len(self.header), StringIO()
        writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)  # COPY ends at a plain \\.
        for number, row in self._rows():
            if number < self.first_line:
                continue
            extra = [value for value in row[width:] if value is not None]
            if extra:
                self.malformed.append(Malformed(number, text_of(extra[0])[:200], f"has values beyond its {width} columns"))
            values = [] if extra else [text_of(value) for value in row[:width]]
            if sum(map(len, values)) > LONGEST_RECORD:  # a workbook has a text once, however many cells it is in
                raise UnreadableFile(f"row {number} has more than {LONGEST_RECORD:,} characters")
            writer.writerow([*values, *[""] * (width - len(values))] if width > 1 else values or [""])
            if number % AT_A_TIME == 0 or out.tell() > PIECE:
                yield out.getvalue().encode()
                out.seek(0)
                out.truncate()
        yield out.getvalue().encode()
        self.read = self.size

    def _rows(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """The rows with their numbers, counted from 1."""
        with self.path.open("rb") as file:  # a file in the store has no suffix, which openpyxl wants of a path
            try:
                book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
            except (BadZipFile, KeyError, ValueError, OSError) as error:
                raise UnreadableFile(f"the file is not an Excel workbook: {error}") from None
            try:
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # what a workbook says of its own size is often wrong
                yield from enumerate(sheet.iter_rows(values_only=True), start=1)
            finally:
                book.close()


def refuse_zip_bomb(path: Path) -> None:
    """Refuse a workbook that is much larger than its file. Nothing more than the size that it states is ever unpacked."""
    try:
        with ZipFile(path) as packed:
            sizes = {one.filename: one.file_size for one in packed.infolist()}
    except BadZipFile as error:
        raise UnreadableFile(f"the file is not an Excel workbook: {error}") from None
    in_memory = sum(size for name, size in sizes.items() if "/worksheets/" not in name)
    if in_memory > LARGEST_IN_MEMORY or sum(sizes.values()) > LARGEST_UNPACKED:
        raise UnreadableFile(
            f"the workbook has {sum(sizes.values()):,} bytes when it is unpacked, {in_memory:,} of them outside of its sheets; "
            f"at most {LARGEST_UNPACKED:,} and {LARGEST_IN_MEMORY:,} are read: save it as CSV"
        )


def text_of(value: Any) -> str:
    """A cell as text, as a CSV file would have it. Pure."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(sep=" ")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value).replace("\0", "")


def _without_empty_end(row: tuple[Any, ...]) -> tuple[Any, ...]:
    while row and row[-1] is None:
        row = row[:-1]
    return row
