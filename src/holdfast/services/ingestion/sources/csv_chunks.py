"""A CSV file as pieces that `COPY … (FORMAT csv)` accepts, in bounded memory. Pure but for reading the file.

The row that Postgres numbers with n is the line n of the file. To keep that so, every line becomes exactly one row: a blank
line, the continuation of a field with line breaks, and a line that cannot be a row become a row of empty fields. The first two
are left out later because all their fields are empty; the last one is listed in `malformed`.

A piece without quotes passes through as it is, after one look at the number of delimiters of each line. Others go through the
csv module.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from holdfast.services.ingestion.sources.dialect import SAMPLE, Dialect, UnreadableFile, detect, without_bom

T = TypeVar("T", bytes, str)
CHUNK: Final = 512 * 1024  # bytes: the csv module needs about 10 ms for it
PIECE: Final = 4 * 1024 * 1024  # bytes of rows that are written for lines without text, in one piece
LONGEST_RECORD: Final = 8 * 1024 * 1024  # bytes of one row; a quote that is never closed ends here
MOST_MALFORMED: Final = 10_000
SHOWN: Final = 200  # characters of a malformed line

csv.field_size_limit(LONGEST_RECORD)


class Malformed(NamedTuple):
    """A line that is no row of the file."""

    line: int
    text: str
    problem: str


@dataclass(slots=True)
class CsvFile:
    """A CSV file with its dialect and its header."""

    path: Path
    dialect: Dialect
    header: list[str]
    first_line: int  # of the rows, counted from 1
    size: int
    _begin: int  # offset of the rows in bytes of the file
    malformed: list[Malformed] = field(default_factory=list)
    is_trimmed: bool = True  # no field so far has spaces around it
    lines: int = 0
    read: int = 0  # bytes

    def pieces(self) -> Iterator[bytes]:
        """The rows in UTF-8, with the delimiter of the dialect and double quotes: the input of one COPY."""
        assert self.dialect.encoding is not None
        with self.path.open("rb") as file:
            file.seek(self._begin)
            yield from _Splitter(self).pieces(iter(lambda: file.read(CHUNK), b""))


def open_csv(path: Path, given: Dialect | None = None) -> CsvFile:
    """Detect the dialect and read the header. `UnreadableFile` if there is none."""
    size = path.stat().st_size
    with path.open("rb") as file:
        sample = file.read(SAMPLE)
    dialect = detect(sample, given)
    assert dialect.encoding is not None
    assert dialect.delimiter is not None
    encoding, text = dialect.encoding, codecs.getincrementaldecoder(dialect.encoding)(errors="replace")
    decoded = text.decode(sample[without_bom(sample) :])
    lines = decoded.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    at = next((number for number, line in enumerate(lines) if line.strip()), None)
    if at is None:
        raise UnreadableFile("the file is empty; its first line must have the names of the columns")
    reader = csv.reader(StringIO(decoded, newline=""), delimiter=dialect.delimiter, quotechar=dialect.quote)
    try:
        header = next(row for row in reader if any(name.strip() for name in row))
    except (csv.Error, StopIteration):
        raise UnreadableFile("the first line is not a header: a quote is not closed") from None
    begin = without_bom(sample) + _bytes_of_lines(decoded, reader.line_num, encoding)
    return CsvFile(path, dialect, [name.strip() for name in header], reader.line_num + 1, size, begin)


def _bytes_of_lines(decoded: str, count: int, encoding: str) -> int:
    """The number of bytes of the first lines."""
    taken = StringIO(decoded, newline="")
    head = "".join(taken.readline() for _ in range(count))
    return len(head.encode(encoding))


class _Splitter:
    """Makes rows of the bytes of one file."""

    def __init__(self, file: CsvFile) -> None:
        assert file.dialect.delimiter is not None
        assert file.dialect.quote is not None
        assert file.dialect.encoding is not None
        self._file, self._encoding = file, file.dialect.encoding
        self._delimiter, self._quote = file.dialect.delimiter.encode(), file.dialect.quote.encode()
        self._between = len(file.header) - 1  # delimiters of a row
        self._filler = self._delimiter * self._between + b"\n" if self._between else b'""\n'
        self._is_utf8 = codecs.lookup(self._encoding).name == "utf-8"
        self._decoder = codecs.getincrementaldecoder(self._encoding)()
        self._line = file.first_line
        around = (self._delimiter, self._quote)
        self._spaces = (b" \n", b"\n ", *(b" " + one for one in around), *(one + b" " for one in around))  # around a field

    def pieces(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        left = b""  # the beginning of a row whose end is in the next chunk
        for chunk in chunks:
            self._file.read += len(chunk)
            left = self._with_plain_breaks(left + self._utf8(chunk))
            end = self._end_of_rows(left)
            if end:
                yield from self._rows(left[:end])
                left = left[end:]
            elif len(left) > LONGEST_RECORD:
                raise UnreadableFile(
                    f"line {self._line} begins a row of more than {LONGEST_RECORD:,} bytes; is a quote not closed?"
                )
        left = self._with_plain_breaks(left + self._utf8(b"", final=True), final=True)
        if left:
            yield from self._rows(left if left.endswith(b"\n") else left + b"\n")

    def _utf8(self, chunk: bytes, *, final: bool = False) -> bytes:
        """The chunk as UTF-8; a character that is cut at its end comes with the next one."""
        try:
            text = self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            raise UnreadableFile(
                f"a line after {self._line} is not {self._encoding}: {error.reason} (byte 0x{error.object[error.start]:02x}); "
                "give the encoding of the file"
            ) from None
        return chunk if self._is_utf8 else text.encode()

    def _with_plain_breaks(self, data: bytes, *, final: bool = False) -> bytes:
        """Every line break as \\n. A \\r at the very end may be half of one."""
        if b"\r" not in data:
            return data
        half = data.endswith(b"\r") and not final
        plain = (data[:-1] if half else data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return plain + b"\r" if half else plain

    def _end_of_rows(self, data: bytes) -> int:
        """Where the last complete row ends. A line break within quotes ends no row: their number up to it is odd."""
        end = data.rfind(b"\n") + 1
        quotes = data.count(self._quote, 0, end)
        while end and quotes % 2:
            before = data.rfind(b"\n", 0, end - 1) + 1
            quotes -= data.count(self._quote, before, end)
            end = before
        return end

    def _rows(self, data: bytes) -> Iterator[bytes]:
        """These complete rows, one for each line."""
        if b" " in data and self._file.is_trimmed:
            self._file.is_trimmed = not data.startswith(b" ") and not any(one in data for one in self._spaces)
        if self._quote in data or b"\0" in data or b"\\." in data or (b'"' in data and self._quote != b'"'):
            for parsed in self._few(self._parsed(data)):
                yield "".join(parsed).encode()
            return
        lines = data.split(b"\n")
        lines.pop()  # after the last line break
        delimiter, between = self._delimiter, self._between
        wrong = [number for number, line in enumerate(lines) if line.count(delimiter) != between or not line]
        first = self._line
        self._line += len(lines)
        self._file.lines += len(lines)
        if not wrong:
            yield data
            return
        blank = self._filler[:-1]
        for number in wrong:
            if lines[number].strip():
                fields = lines[number].count(delimiter) + 1
                self._refuse(first + number, lines[number].decode(), f"has {fields} fields; the header has {between + 1}")
            lines[number] = blank
        for some in self._few(lines):
            yield b"\n".join(some) + b"\n"

    def _few(self, rows: list[T]) -> Iterator[list[T]]:
        """The rows in parts that can be joined: a blank line of one byte has become a row with all its delimiters."""
        each = max(1, PIECE // len(self._filler))
        return (rows[begin : begin + each] for begin in range(0, len(rows), each))

    def _parsed(self, data: bytes) -> list[str]:
        """The same through the csv module: rows with quotes."""
        lines = data.decode().split("\n")
        lines.pop()
        reader = csv.reader([f"{line}\n" for line in lines], delimiter=self._delimiter.decode(), quotechar=self._quote.decode())
        filler = self._filler.decode()
        out: list[str] = []
        first, done = self._line, 0
        try:
            for row in reader:
                begin, done = done, reader.line_num
                problem = self._problem_of(row)
                if problem is not None:
                    self._refuse(first + begin, "\n".join(lines[begin:done]), problem)
                out.append(self._written(row) if problem is None and any(row) else filler)
                out += [filler] * (done - begin - 1)
        except csv.Error as error:
            raise UnreadableFile(f"line {first + reader.line_num - 1} is not CSV: {error}") from None
        self._line += len(lines)
        self._file.lines += len(lines)
        return out

    def _problem_of(self, row: list[str]) -> str | None:
        """Why these fields are no row; None for a row, and for a blank line."""
        if any("\0" in one for one in row):
            return "has a NUL character"
        if len(row) != self._between + 1 and any(one.strip() for one in row):
            return f"has {len(row)} fields; the header has {self._between + 1}"
        return None

    def _written(self, row: Sequence[str]) -> str:
        """A row as COPY reads it: with the dialect's delimiter, and double quotes where they are needed."""
        delimiter = self._delimiter.decode()
        return (
            delimiter.join(
                '"' + one.replace('"', '""') + '"' if '"' in one or "\n" in one or delimiter in one or one == "\\." else one
                for one in row
            )
            + "\n"
        )

    def _refuse(self, line: int, text: str, problem: str) -> None:
        if len(self._file.malformed) >= MOST_MALFORMED:
            raise UnreadableFile(
                f"more than {MOST_MALFORMED:,} lines do not have {self._between + 1} fields; is {self._delimiter.decode()!r} "
                "the delimiter of the file?"
            )
        self._file.malformed.append(Malformed(line, text.replace("\0", "\ufffd")[:SHOWN], problem))
