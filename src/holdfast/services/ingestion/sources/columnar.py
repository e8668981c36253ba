"""Parquet: batches of rows, as CSV for COPY."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.extras import lazily
from holdfast.services.ingestion.sources.csv_chunks import Malformed
from holdfast.services.ingestion.sources.dialect import Dialect, UnreadableFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq
else:
    pa, pc = lazily("pyarrow"), lazily("pyarrow.compute")
    pa_csv, pq = lazily("pyarrow.csv"), lazily("pyarrow.parquet")

BATCH: Final = 20_000  # rows


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

    def pieces(self) -> Iterator[bytes]:
        options = pa_csv.WriteOptions(include_header=False, quoting_style="all_valid")
        done = 0
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                sink = pa.BufferOutputStream()
                pa_csv.write_csv(as_text(batch), sink, options)
                done += batch.num_rows
                self.read = self.size * done // self._rows
                yield sink.getvalue().to_pybytes()


def as_text(batch: Any) -> Any:
    """The batch with dates and times as ISO text, without NUL characters, which Postgres does not store; numbers stay."""
    columns = [
        one if pa.types.is_floating(one.type) else pc.replace_substring(one.cast(pa.string()), "\0", "")
        for one in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
