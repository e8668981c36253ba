"""Open a file as rows: CSV, XLSX or Parquet, by its name and its first bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from holdfast.services.ingestion.sources.columnar import ParquetFile
from holdfast.services.ingestion.sources.csv_chunks import Malformed, open_csv
from holdfast.services.ingestion.sources.dialect import Dialect, UnreadableFile
from holdfast.services.ingestion.sources.sheets import Sheet

ZIP, PARQUET, OLD_EXCEL = b"PK\x03\x04", b"PAR1", b"\xd0\xcf\x11\xe0"
LONGEST_HEADER: Final = 1000


class Rows(Protocol):
    """Rows in the order of their lines, as CSV that COPY accepts; the row with the number n is line n of the file."""

    dialect: Dialect
    header: list[str]
    first_line: int
    size: int
    read: int  # of `size`, so far
    malformed: list[Malformed]
    is_trimmed: bool  # no field has spaces around it; known when all rows are read

    def pieces(self) -> Iterator[bytes]: ...


def open_rows(path: Path, given: Dialect | None = None) -> Rows:
    """The rows of a file. `UnreadableFile` if it is none of the formats."""
    with path.open("rb") as file:
        begin = file.read(4)
    if begin == OLD_EXCEL:
        raise UnreadableFile("the file is an old Excel file (.xls); save it as .xlsx or CSV")
    found: Rows = ParquetFile(path) if begin == PARQUET else Sheet(path) if begin == ZIP else open_csv(path, given)
    refuse_bad_header(found.header)
    return found


def refuse_bad_header(header: Sequence[str]) -> None:
    """Refuse a header with empty or duplicate names. Pure."""
    if len(header) > LONGEST_HEADER:
        raise UnreadableFile(f"the file has {len(header):,} columns; at most {LONGEST_HEADER:,}")
    folded = [name.casefold() for name in header]
    for number, name in enumerate(folded):
        if not name:
            raise UnreadableFile(f"column {number + 1} has no name in the header")
        if name in folded[:number]:
            raise UnreadableFile(f"the header has {header[number]!r} twice; remove or rename one of the columns")
