"""Rows as JSON, CSV or an Arrow stream, batch by batch.

Arrow keeps every type. JSON has dates and times in ISO 8601, binary values in base64, and null for NaN and infinities, which
JSON does not have. Nodes and edges are objects without the properties that they do not have. In CSV a nested value is JSON
text.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from holdfast.extras import lazily
from holdfast.services.graphs.server.refusals import Refusal

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazily("pyarrow")

Format = Literal["json", "csv", "arrow"]
ARROW: Final = "application/vnd.apache.arrow.stream"
MEDIA: Final[dict[Format, str]] = {"json": "application/json", "csv": "text/csv", "arrow": ARROW}
LINES: Final = 2_000  # rows of JSON or CSV that are made at once
GRAPH_TYPES: Final = frozenset({"NODE", "REL", "RECURSIVE_REL"})


def format_of(accept: str | None) -> Format:
    """The format that an Accept header asks for: the first that is known. Pure."""
    for part in (accept or "*/*").split(","):
        media = part.partition(";")[0].strip().lower()
        if media in ("*/*", "application/*", "application/json"):
            return "json"
        for name, known in MEDIA.items():
            if media == known:
                return name
    raise Refusal(406, "NOT_ACCEPTABLE", f"There is no answer in {accept!r}.", f"Accept one of: {', '.join(MEDIA.values())}.")


def pieces(
    table: pa.Table, form: Format, *, types: Sequence[str] = (), truncated: bool = False, **members: Any
) -> Iterator[bytes]:
    """The table in this format, in pieces. `types` are the engine's; `members` are further members of the JSON object."""
    if form == "arrow":
        return _arrow(table, truncated)
    if form == "csv":
        return _csv(table)
    return _json(table, types, {**members, "truncated": truncated})


def _arrow(table: pa.Table, truncated: bool) -> Iterator[bytes]:
    """An Arrow IPC stream: the schema, then each chunk of the table."""
    sink = _Sink()
    schema = table.schema.with_metadata({"holdfast_truncated": str(truncated).lower()})
    with pa.ipc.new_stream(sink, schema) as writer:
        yield from sink.taken()
        for batch in table.to_batches():
            writer.write_batch(batch)
            yield from sink.taken()
    yield from sink.taken()


class _Sink(io.RawIOBase):
    """Collects what a writer has written since the last look."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def taken(self) -> list[bytes]:
        """The parts, joined; they are forgotten."""
        parts, self._parts = self._parts, []
        return [b"".join(parts)] if parts else []


def _json(table: pa.Table, types: Sequence[str], members: Mapping[str, Any]) -> Iterator[bytes]:
    head = {"columns": table.column_names, "column_types": list(types), "row_count": table.num_rows, **members}
    yield json.dumps(head, ensure_ascii=False, allow_nan=False)[:-1].encode() + b', "rows": ['
    separator = b""
    for rows in _rows(table, types):
        text = json.dumps(rows, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        yield separator + text[1:-1].encode()
        separator = b","
    yield b"]}"


def _csv(table: pa.Table) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    for rows in _rows(table, ()):
        writer.writerows([_cell(value) for value in row] for row in rows)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _rows(table: pa.Table, types: Sequence[str]) -> Iterator[list[list[Any]]]:
    """Rows of values that JSON has, some at a time."""
    if not table.num_columns:
        return
    of_graph = [number < len(types) and types[number] in GRAPH_TYPES for number in range(table.num_columns)]
    for batch in table.to_batches(max_chunksize=LINES):
        columns = [
            [plain(value, prune=prune) for value in column.to_pylist()]
            for column, prune in zip(batch.columns, of_graph, strict=True)
        ]
        if batch.num_rows:
            yield [list(row) for row in zip(*columns, strict=True)]


def plain(value: Any, *, prune: bool = False) -> Any:
    """A value as JSON has it. `prune` removes properties that are null: a node of several labels has those of all. Pure."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(one, prune=prune) for key, one in value.items() if one is not None or not prune}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # a MAP
            return {str(plain(key)): plain(one, prune=prune) for key, one in value}
        return [plain(one, prune=prune) for one in value]
    for kind, convert in OTHERS:
        if isinstance(value, kind):
            return convert(value)
    return str(value)


OTHERS: Final[Sequence[tuple[type, Callable[[Any], Any]]]] = (
    (datetime, datetime.isoformat),
    (date, date.isoformat),
    (timedelta, lambda value: value.total_seconds()),
    (Decimal, str),
    (UUID, str),
    (bytes, lambda value: base64.b64encode(value).decode()),
)
