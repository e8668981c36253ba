"""Parquet: batches of rows, as CSV for COPY, in bounded memory.

A value that a Parquet file has once may be in every row, and a few bytes may unpack to a large page. So the number of rows that
are read at once depends on the types of the columns and on the pages, and no piece is much larger than `PIECE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from holdfast.extras import lazily
from holdfast.services.ingestion.sources.csv_chunks import LONGEST_RECORD, Malformed
from holdfast.services.ingestion.sources.dialect import Dialect, UnreadableFile
from holdfast.services.ingestion.sources.parquet_pages import BadPage, Pages, pages_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq
else:
    pa, pc = lazily("pyarrow"), lazily("pyarrow.compute")
    pa_csv, pq = lazily("pyarrow.csv"), lazily("pyarrow.parquet")

MIB: Final = 1024 * 1024
BATCH: Final = 20_000  # rows
PIECE: Final = 4 * MIB  # bytes of CSV; quotes in a text are doubled and not counted
# Rows per read if a column has values of any length. pyarrow cannot change this number within a row group, so it is small, and
# batches are joined up to PIECE.
UNKNOWN_WIDTH_ROWS: Final = 256
LARGEST_READ: Final = 512 * MIB  # bytes of one read, and of the pages that it has unpacked
AROUND_TEXT: Final = 3  # two quotes and a delimiter


class ParquetFile:
    """A Parquet file of plain columns."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.read = path, path.stat().st_size, 0
        self.dialect = Dialect("utf-8", ",", '"', ".")
        self.malformed: list[Malformed] = []
        self.is_trimmed = False
        self.first_line = 1
        try:
            with pq.ParquetFile(path) as file:
                schema, self._rows = file.schema_arrow, max(1, file.metadata.num_rows)
        except (pa.ArrowInvalid, OSError) as error:
            raise UnreadableFile(f"the file is not Parquet: {error}") from None
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise UnreadableFile(f"column {field.name!r} has the type {field.type}; only plain columns can be ingested")
        self.header = [name.strip() for name in schema.names]
        self._widths = [width_of(kind) for kind in schema.types]
        self._around = sum(AROUND_TEXT if width is None else width for width in self._widths)  # bytes of a row without its text
        self._refers = [refers(kind) for kind in schema.types]

    def pieces(self) -> Iterator[bytes]:
        done = 0
        for batch in self._joined():
            piece = as_csv(batch)
            done += batch.num_rows
            self.read = self.size * done // self._rows
            yield piece

    def _joined(self) -> Iterator[Any]:
        """Batches that make pieces of about PIECE, or have BATCH rows."""
        held: list[Any] = []
        size = rows = 0
        for batch in self._batches():
            more = self._csv_bytes(batch)
            if held and (size + more > PIECE or rows + batch.num_rows > BATCH):
                yield pa.concat_batches(held)
                held, size, rows = [], 0, 0
            held.append(batch)
            size, rows = size + more, rows + batch.num_rows
        if held:
            yield pa.concat_batches(held)

    def _batches(self) -> Iterator[Any]:
        """The batches that pyarrow reads, cut to at most PIECE."""
        line = self.first_line
        with self.path.open("rb") as raw, pq.ParquetFile(self.path, buffer_size=MIB) as file:
            for group in range(file.num_row_groups):
                if file.metadata.row_group(group).num_rows == 0:  # its columns may begin nowhere
                    continue
                rows = self._rows_at_once(raw, file.metadata.row_group(group))
                # Threads cost more than they save if they begin and end for each few rows.
                threads = rows > UNKNOWN_WIDTH_ROWS
                for batch in file.iter_batches(batch_size=rows, row_groups=[group], use_threads=threads):
                    yield from self._cut(self._plain(batch), line)
                    line += batch.num_rows

    def _rows_at_once(self, raw: BinaryIO, group: pq.RowGroupMetaData) -> int:
        """How many rows of a row group to read at once. No read, and no pages of it, take more than LARGEST_READ."""
        try:
            pages = [pages_of(raw, group.column(number)) for number in range(group.num_columns)]
        except BadPage as error:
            raise UnreadableFile(f"the file is not Parquet: {error}") from None
        unpacked = sum(one.largest for one in pages)
        if unpacked > LARGEST_READ:
            raise UnreadableFile(
                f"the largest pages of its {len(pages)} columns have {unpacked:,} bytes together when they are unpacked; at "
                f"most {LARGEST_READ:,} are read: write the file with smaller pages, or save it as CSV"
            )
        rows = max(1, min(BATCH, PIECE // max(1, sum(width or 0 for width in self._widths))))
        texts = [one for one, width in zip(pages, self._widths, strict=True) if width is None]
        return min(rows, rows_of_texts(texts)) if texts else rows

    def _plain(self, batch: Any) -> Any:
        """The batch without references, so that its size is that of its values."""
        if not any(self._refers):
            return batch
        columns = [one.cast(pa.string()) if is_one else one for one, is_one in zip(batch.columns, self._refers, strict=True)]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _csv_bytes(self, batch: Any) -> int:
        """The most bytes of CSV that a batch has."""
        return int(batch.nbytes) + self._around * int(batch.num_rows)

    def _cut(self, batch: Any, line: int) -> Iterator[Any]:
        """The batch in parts of at most PIECE each, or of one row."""
        size, rows = self._csv_bytes(batch), batch.num_rows
        if size <= PIECE:
            yield batch
        elif rows > 1:
            yield from self._cut(batch.slice(0, rows // 2), line)
            yield from self._cut(batch.slice(rows // 2), line + rows // 2)
        elif size > LONGEST_RECORD:
            raise UnreadableFile(f"row {line} has more than {LONGEST_RECORD:,} bytes")
        else:
            yield batch


def rows_of_texts(columns: list[Pages]) -> int:
    """How many rows of columns with values of any length to read at once. Pure."""
    # A value is not larger than its page. Where it is there for one row only, all values are not larger than all such pages.
    by_value = LARGEST_READ // max(1, sum(one.largest for one in columns))
    by_page = (LARGEST_READ - sum(one.others for one in columns)) // max(1, sum(one.repeating for one in columns))
    return max(1, min(UNKNOWN_WIDTH_ROWS, max(by_value, by_page)))


def refers(kind: Any) -> bool:
    """Whether an array of this type refers to values, which it may share with others. Pure."""
    return any(one(kind) for one in (pa.types.is_dictionary, pa.types.is_string_view, pa.types.is_binary_view))


def width_of(kind: Any) -> int | None:
    """The most bytes that a value of this type has in CSV; None if that depends on the value. Pure."""
    if refers(kind):
        return None  # its bit width is that of a reference
    if pa.types.is_null(kind):
        return AROUND_TEXT
    if pa.types.is_fixed_size_binary(kind):
        return 16 + 3 * int(kind.byte_width)  # its bit width overflows
    try:
        return 16 + 3 * (int(kind.bit_width) // 8)
    except ValueError:
        return None


def as_csv(batch: Any) -> bytes:
    """The rows of a batch for COPY."""
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(as_text(batch), sink, pa_csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return bytes(sink.getvalue().to_pybytes())


def as_text(batch: Any) -> Any:
    """The batch with dates and times as ISO text, without NUL characters, which Postgres does not store; numbers stay."""
    columns = [
        one if pa.types.is_floating(one.type) else pc.replace_substring(one.cast(pa.string()), "\0", "")
        for one in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
