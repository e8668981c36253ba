"""Read pages without nested columns with Arrow's CSV reader: whole columns, without a Python object per value.

`[[1,"a"],[2,"b"]]` is a CSV file except for its row separator. It is read as CSV only when the result is exact:

- The page is well-formed JSON (the caller checks it), so it contains no raw control characters.
- Before parsing, backslash escapes are replaced by control characters; after parsing, those by the escaped characters.
- Every `],[` becomes a newline. One inside a string does not start a row, so there are fewer rows than separators. Such a page
  is not read here.

`columns` returns None for a page that it cannot read exactly. `nested.py` then reads it: slower, but it reads every page.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from holdfast.engines.trino.signature import TrinoType
from holdfast.engines.trino.text import ZONED, from_text

SEPARATOR = b"],["
ESCAPES = (  # the escaped backslash comes first: then every remaining backslash starts an escape
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
    """Reads the pages of one result."""

    def __init__(self, types: tuple[TrinoType, ...]) -> None:
        self._types = types
        self._names = [str(index) for index in range(len(types))]  # column names of a result need not be unique
        self._converting = csv.ConvertOptions(
            column_types=dict(zip(self._names, map(_read_as, types), strict=True)),
            null_values=["null"],
            true_values=["true"],
            false_values=["false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def columns(self, page: bytes) -> list[pa.Array] | None:
        """Return the columns of a page, or None if this reader cannot read it exactly."""
        if not (page.startswith(b"[[") and page.endswith(b"]]")):
            return None
        lines, swapped = _without_escapes(page[2:-2])
        if b"\\" in lines:  # \u escapes: Trino writes them for rare control characters only
            return None
        before, lines = len(lines), lines.replace(SEPARATOR, b"\n")
        rows = (before - len(lines)) // (len(SEPARATOR) - 1) + 1  # faster than counting the separators
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
    """The type that the CSV reader converts to. `from_text` converts a column that is read as text."""
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
