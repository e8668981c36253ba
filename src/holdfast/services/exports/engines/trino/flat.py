"""Pages without nested columns, read by Arrow's CSV reader: columns at once, without a Python object per value.

`[[1,"a"],[2,"b"]]` is a CSV file in all but its row separator. It is read as one only when that is exact:

- The page is well-formed JSON (the caller has seen to it), so raw control characters cannot occur in it.
- Backslash escapes are swapped for control characters before, and those for what they stand for after.
- Every `],[` becomes a newline. One inside a string would not become a row, so fewer rows than separators tell of it.

Whatever does not fit is no error here: the page is then read by `nested.py`, which is slower and takes everything.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from holdfast.services.exports.engines.trino.signature import TrinoType
from holdfast.services.exports.engines.trino.text import ZONED, from_text

SEPARATOR = b"],["
ESCAPES = (  # the backslash comes first: after it, each remaining one begins an escape
    (rb"\\", b"\x01", "\\"),
    (rb"\"", b"\x02", '"'),
    (rb"\n", b"\x03", "\n"),
    (rb"\r", b"\x04", "\r"),
    (rb"\t", b"\x05", "\t"),
    (rb"\b", b"\x06", "\b"),
    (rb"\f", b"\x07", "\f"),
    (rb"\/", b"/", "/"),
)
PARSING = csv.ParseOptions(delimiter=",", quote_char='"', double_quote=False, escape_char=False, newlines_in_values=True)


class FlatReader:
    """Reads pages of one result."""

    def __init__(self, types: tuple[TrinoType, ...]) -> None:
        self._types = types
        self._names = [str(index) for index in range(len(types))]  # a result may have two columns of one name
        self._converting = csv.ConvertOptions(
            column_types=dict(zip(self._names, map(_read_as, types), strict=True)),
            null_values=["null"],
            true_values=["true"],
            false_values=["false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def columns(self, page: bytes) -> list[pa.Array] | None:
        """The columns of a page, or None when this is not the way to read it."""
        if not (page.startswith(b"[[") and page.endswith(b"]]")):
            return None
        lines, swapped = _without_escapes(page[2:-2])
        if b"\\" in lines:  # \u, which Trino writes for rare control characters only
            return None
        before, lines = len(lines), lines.replace(SEPARATOR, b"\n")
        rows = (before - len(lines)) // (len(SEPARATOR) - 1) + 1  # cheaper than counting them
        reading = csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(lines) + 2)
        try:
            table = csv.read_csv(pa.BufferReader(lines), reading, PARSING, self._converting)
            if table.num_rows != rows:
                return None
            return [self._finish(table.column(index), type_, swapped) for index, type_ in enumerate(self._types)]
        except (pa.ArrowInvalid, ValueError):
            return None

    @staticmethod
    def _finish(column: pa.ChunkedArray, type_: TrinoType, swapped: list[tuple[str, str]]) -> pa.Array:
        array = column.combine_chunks()
        if pa.types.is_string(array.type):
            for sign, meant in swapped:
                array = pc.replace_substring(array, sign, meant)
            return from_text(array, type_)
        return array


def _read_as(type_: TrinoType) -> pa.DataType:
    """What the CSV reader makes of it; the rest is done on the column of texts."""
    as_text = type_.too_fine or type_.raw in ("varbinary", ZONED)
    return pa.string() if as_text else type_.arrow


def _without_escapes(lines: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    swapped: list[tuple[str, str]] = []
    if b"\\" not in lines:
        return lines, swapped
    for escape, sign, meant in ESCAPES:
        if escape in lines:
            lines = lines.replace(escape, sign)
            swapped.append((sign.decode(), meant))
    return lines, swapped
