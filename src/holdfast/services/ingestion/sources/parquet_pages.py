"""How much memory the pages of a Parquet file take when they are unpacked. Pure but for reading the file.

pyarrow unpacks a page as a whole, and neither the footer nor pyarrow says how large it is: a file of 100 kB may have a page of
2 GiB. So the headers of the pages are read here: a few bytes before each page, in the compact protocol of Thrift.
"""

from __future__ import annotations

from os import SEEK_END
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

HEADER: Final = 1024  # bytes that are read for a header; it is longer only if it has long statistics
LONGEST_HEADER: Final = 16 * 1024 * 1024  # the limit of pyarrow
DEEPEST: Final = 8  # structs in structs; a page header has three levels
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, STRUCT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 12
TYPE, UNPACKED, PACKED, DATA, DATA_V2 = 1, 2, 3, 5, 8  # fields of a header
ENCODING: Final = {DATA: 2, DATA_V2: 4}  # the field of their structs
DICTIONARY_PAGE, DELTA_BYTE_ARRAY = 2, 7  # a type of page, and an encoding
LARGEST_FIELD: Final = 32_767


class BadPage(ValueError):
    """This is no header of a page."""


class Page(NamedTuple):
    """What the header of a page says."""

    unpacked: int  # not less than packed: pyarrow reads this number only if the page is compressed
    packed: int
    length: int  # of the header
    repeats: bool


class Pages(NamedTuple):
    """Unpacked sizes of the pages of a column in a row group."""

    largest: int
    repeating: int  # the largest page whose values, or parts of them, may be in many rows; 0 without one
    others: int  # the sum of the other pages


def pages_of(file: BinaryIO, column: pq.ColumnChunkMetaData) -> Pages:
    """Reads the headers of all pages."""
    dictionary, at = column.dictionary_page_offset, column.data_page_offset
    if dictionary is not None and 0 < dictionary < at:
        at = dictionary
    end, found = at + column.total_compressed_size, Pages(0, 0, 0)
    if not 0 <= at <= end <= file.seek(0, SEEK_END):
        raise BadPage("a column is not within the file")
    while at < end:
        page = _page_at(file, at)
        largest = max(found.largest, page.unpacked)
        if page.repeats:
            found = found._replace(largest=largest, repeating=max(found.repeating, page.unpacked))
        else:
            found = found._replace(largest=largest, others=found.others + page.unpacked)
        at += page.length + page.packed
    return found


def _page_at(file: BinaryIO, at: int) -> Page:
    size = HEADER
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            return _Header(data).page()
        except IndexError:  # the header goes on
            if len(data) < size or size >= LONGEST_HEADER:
                raise BadPage(f"the header at {at:,} does not end") from None
            size *= 16


class _Header:
    """Reads one header."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def page(self) -> Page:
        found = self._struct(0)
        unpacked, packed = found.get((UNPACKED,), -1), found.get((PACKED,), -1)
        if unpacked < 0 or packed < 0:
            raise BadPage("the header of a page has no size, or a negative one")
        encodings = [found.get((data, field)) for data, field in ENCODING.items()]
        repeats = found.get((TYPE,)) == DICTIONARY_PAGE or DELTA_BYTE_ARRAY in encodings
        return Page(max(unpacked, packed), packed, self._at, repeats)

    def _struct(self, depth: int, place: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
        """The 32-bit numbers of a struct and of the structs in it, by the fields that lead to them. pyarrow skips other numbers
        where it expects one of 32 bits; a field that occurs twice is refused, so pyarrow reads no other value than this."""
        if depth > DEEPEST:
            raise BadPage("the header has too many levels")
        found: dict[tuple[int, ...], int] = {}
        seen: set[int] = set()
        number = 0
        while (byte := self._byte()) & 15 != STOP:
            number, kind = number + (byte >> 4) if byte >> 4 else self._number(), byte & 15
            if number in seen or not 0 < number <= LARGEST_FIELD:
                raise BadPage(f"the header has the field {number} twice, or it is out of range")
            seen.add(number)
            if kind == I32:
                found[*place, number] = value = self._number()
                if not -(2**31) <= value < 2**31:  # pyarrow cuts it to 32 bits
                    raise BadPage(f"the field {number} of the header has more than 32 bits")
            elif kind in (I16, I64):
                self._number()
            elif kind == STRUCT:
                found |= self._struct(depth + 1, (*place, number))
            elif kind in (BYTE, DOUBLE, BINARY):
                self._skip({BYTE: 1, DOUBLE: 8}.get(kind) or self._varint())
            elif kind not in (TRUE, FALSE):
                raise BadPage(f"the header has a field of type {kind}")
        return found

    def _byte(self) -> int:
        self._skip(1)
        return self._data[self._at - 1]

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise IndexError

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise BadPage("the header has a number of more than 64 bits")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
