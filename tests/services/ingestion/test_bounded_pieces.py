"""No piece of a file is large, however little the file itself takes."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

import openpyxl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from holdfast.services.ingestion.sources import columnar, csv_chunks, sheets
from holdfast.services.ingestion.sources.dialect import UnreadableFile
from holdfast.services.ingestion.sources.opening import open_rows
from holdfast.services.ingestion.sources.parquet_pages import BadPage, Page, _page_at, pages_of

MIB = 1024 * 1024
LARGEST = 8 * MIB
LONG = "x" * 20_000


def sizes(path: Path) -> list[int]:
    """The length of each piece. Each piece is dropped before the next one is made."""
    return [len(piece) for piece in open_rows(path).pieces()]


def written(path: Path, table: pa.Table, **options: object) -> Path:
    pq.write_table(table, path, **options)
    return path


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_a_text_that_a_parquet_file_has_once_makes_no_large_piece(kind: pa.DataType, tmp_path: Path) -> None:
    """It is in 2,000 rows: 40 MB from a file of less than 100 kB."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2_000, pa.int32()), [LONG])
    column = text if pa.types.is_dictionary(kind) else text.cast(pa.string()).cast(kind)
    path = written(tmp_path / "f", pa.table({"number": range(2_000), "text": column}))
    assert path.stat().st_size < 100_000

    found = sizes(path)

    assert max(found) <= LARGEST
    assert min(found[:-1]) >= MIB, "small reads were not joined"
    assert sum(found) == 2_000 * (len(LONG) + len('"","",\n')) + sum(len(str(one)) for one in range(2_000)) - 2_000


def test_few_rows_are_read_at_once_if_a_column_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pyarrow returns in one read is in memory as a whole before it can be cut."""
    path = written(tmp_path / "f", pa.table({"text": [LONG] * 2_000}))

    assert first_read(path, monkeypatch) == columnar.UNKNOWN_WIDTH_ROWS


def test_narrow_rows_of_a_parquet_file_come_in_large_pieces(tmp_path: Path) -> None:
    numbers = list(range(20_000))
    fixed = written(tmp_path / "fixed", pa.table({"a": numbers, "b": numbers}))
    text = written(tmp_path / "text", pa.table({"a": numbers, "b": [str(one) for one in numbers]}), row_group_size=1_000)

    assert [len(sizes(path)) for path in (fixed, text)] == [1, 1]


def test_wide_rows_of_a_parquet_file_make_no_large_piece(tmp_path: Path) -> None:
    """500 columns of fixed width: `"false",` is 8 bytes for one bit."""
    column = pa.array([False] * 3_000)
    found = sizes(written(tmp_path / "f", pa.table({f"c{number}": column for number in range(500)})))

    assert sum(found) == 3_000 * 500 * len('"false",')
    assert max(found) <= LARGEST


def test_rows_of_a_parquet_file_are_complete_and_in_order_after_they_are_cut_and_joined(tmp_path: Path) -> None:
    """Short and long texts in turn, in several row groups."""
    table = pa.table({"n": range(900), "text": ["s" if one % 300 < 200 else LONG * 3 for one in range(900)]})
    file = open_rows(written(tmp_path / "f", table, row_group_size=400))

    pieces = [*file.pieces()]

    found = [*csv.reader(io.StringIO(b"".join(pieces).decode(), newline=""))]
    assert [int(one[0]) for one in found] == [*range(900)]
    assert [len(one[1]) for one in found] == pc.utf8_length(table["text"]).to_pylist()
    assert len(pieces) > 3
    assert file.read == file.size


def test_a_row_of_a_parquet_file_that_is_too_long_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "f", pa.table({"text": ["a"] * 300 + ["x" * LARGEST] + ["b"] * 10}), row_group_size=290)

    with pytest.raises(UnreadableFile, match="row 301 has more than 8,388,608 bytes"):
        sizes(path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_large_page_of_a_parquet_file_is_refused_before_it_is_unpacked(
    version: str, use_dictionary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer has only the sum of the pages of a column."""
    monkeypatch.setattr(columnar, "LARGEST_READ", 3 * MIB)
    options = {"use_dictionary": use_dictionary, "data_page_version": version, "compression": "zstd"}
    table = pa.table({"n": range(200), "text": [f"{one:04}" + LONG for one in range(200)]})
    small = written(tmp_path / "small", table, data_page_size=MIB, write_batch_size=10, **options | {"use_dictionary": False})
    large = written(tmp_path / "large", table, data_page_size=8 * MIB, dictionary_pagesize_limit=8 * MIB, **options)
    assert large.stat().st_size < 100_000

    assert sum(sizes(small)) > 3 * MIB
    with pytest.raises(
        UnreadableFile,
        match=r"largest pages of its 2 columns have 4,\d\d\d,\d\d\d bytes together when they are unpacked; at most 3,",
    ):
        sizes(large)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, MIB // (len(LONG) + 4)),  # the value of the dictionary may be in every row
        ({"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}, 51),  # also the value that others repeat
        ({"use_dictionary": False, "data_page_size": 1, "write_batch_size": 1}, MIB // (len(LONG) + 4)),  # a page for each row
    ],
)
def test_fewer_rows_are_read_at_once_if_a_page_is_large(
    options: dict[str, object], rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "LARGEST_READ", MIB)
    path = written(tmp_path / "f", pa.table({"text": [LONG] * 200}), **options)

    assert first_read(path, monkeypatch) == rows


def test_a_large_page_of_values_that_are_there_once_is_read_in_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB writes one page for a column of a row group. Its rows are not read one by one."""
    monkeypatch.setattr(columnar, "LARGEST_READ", 4 * MIB)
    options = {"use_dictionary": False, "data_page_size": 8 * MIB}
    path = written(tmp_path / "f", pa.table({"text": [f"{one:04}" + LONG for one in range(200)]}), **options)

    assert first_read(path, monkeypatch) == 200


@pytest.mark.parametrize("texts", [{}, {"text": ["a"] * 200}])
def test_few_rows_are_read_at_once_if_a_value_of_fixed_width_is_large(
    texts: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a column of texts, too."""
    fixed = pa.array([b"x" * 100_000] * 200, pa.binary(100_000))

    assert first_read(written(tmp_path / "f", pa.table({"fixed": fixed, **texts})), monkeypatch) == 13


@pytest.mark.parametrize("size", [2**28, 2**29, 2**31 - 1])
def test_the_width_of_a_very_large_value_of_fixed_width_does_not_overflow(size: int) -> None:
    """Its number of bits does not fit into 32 bits."""
    assert columnar.width_of(pa.binary(size)) == 16 + 3 * size


def test_a_column_that_is_not_within_the_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "f", pa.table({"n": range(10)}))
    group = pq.ParquetFile(path).metadata.row_group(0)

    for offset in (-1, 2**62, path.stat().st_size):
        with path.open("rb") as file, pytest.raises(BadPage, match="not within the file"):
            pages_of(file, Moved(offset, group.column(0).total_compressed_size))


class Moved(NamedTuple):
    """What the footer of a damaged file says about a column."""

    data_page_offset: int
    total_compressed_size: int
    dictionary_page_offset: int | None = None


def first_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The rows of the first batch that pyarrow returns."""
    read = []
    original = columnar.ParquetFile._cut

    def noted(self: columnar.ParquetFile, batch: pa.RecordBatch, line: int) -> object:
        read.append(batch.num_rows)
        return original(self, batch, line)

    monkeypatch.setattr(columnar.ParquetFile, "_cut", noted)
    sizes(path)
    return read[0]


def test_a_row_group_without_rows_is_left_out(tmp_path: Path) -> None:
    """pyarrow writes that its columns begin where the file does."""
    table = pa.table({"text": ["a", "b"]})
    with pq.ParquetWriter(tmp_path / "f", table.schema) as writer:
        for part in (table, table.slice(0, 0), table):
            writer.write_table(part)

    assert b"".join(open_rows(tmp_path / "f").pieces()).split() == [b'"a"', b'"b"', b'"a"', b'"b"']
    assert sizes(written(tmp_path / "empty", table.slice(0, 0))) == []


I16, I32, I64 = 4, 5, 6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([(2, I32, 9), (3, I32, 8)], Page(9, 8, 5, False)),
        ([(2, I32, 9), (3, I32, 8), (9, I64, 1), (10, I16, 1)], Page(9, 8, 9, False)),
        ([(2, I32, 1), (3, I32, 8)], Page(8, 8, 5, False)),  # a page that is not compressed; pyarrow does not read the 1
        ([(2, I32, 7), (3, I32, 8 + 2**32)], "the field 3 of the header has more than 32 bits"),  # pyarrow reads 8
        ([(1, I32, 2 + 2**32), (2, I32, 7), (3, I32, 8)], "the field 1 of the header has more than 32 bits"),
        ([(2, I32, 7), (3, I32, 8), (2, I64, 1)], "the field 2 twice"),  # pyarrow skips it, the size stays 7
        ([(2, I32, 7), (3, I32, 8), (2, I32, 1)], "the field 2 twice"),
        ([(2, I64, 7), (3, I32, 8)], "no size"),
        ([(2, I32, 7), (3, I32, 8), (65_538, I32, 1)], "field 65538 twice, or it is out of range"),  # 2 in 16 bits
    ],
)
def test_the_size_of_a_page_is_the_one_that_pyarrow_reads(
    fields: list[tuple[int, int, int]], said: Page | str, tmp_path: Path
) -> None:
    header = b"".join(bytes([kind]) + varint(2 * number) + varint(2 * value) for number, kind, value in fields) + b"\0"
    path = tmp_path / "f"
    path.write_bytes(header)

    with path.open("rb") as file:
        if isinstance(said, Page):
            length = len(header)
            assert _page_at(file, 0) == said._replace(length=length)
        else:
            with pytest.raises(BadPage, match=said):
                _page_at(file, 0)


def varint(value: int) -> bytes:
    found = []
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


@pytest.mark.parametrize("damage", [b"\x00" * 8, b"\x15\x01\x15\x01\x00", b"\xff" * 16, b"\x1c" * 1_500])
def test_a_parquet_file_with_a_damaged_page_is_refused(damage: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "f", pa.table({"n": range(1_000)}))
    content = bytearray(path.read_bytes())
    content[4 : 4 + len(damage)] = damage
    path.write_bytes(content)

    with pytest.raises(UnreadableFile, match="the file is not Parquet"):
        sizes(path)


def test_a_text_that_a_workbook_has_once_makes_no_large_piece(tmp_path: Path) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(["a", "b"])
    for _ in range(500):
        sheet.append([LONG, 1])
    book.save(tmp_path / "f.xlsx")

    found = sizes(tmp_path / "f.xlsx")

    assert len(found) == 3
    assert max(found) <= LARGEST


def test_a_row_of_a_workbook_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "LONGEST_RECORD", 100)
    book = openpyxl.Workbook()
    for row in (["a", "b"], ["x" * 50, "y" * 50], ["x" * 50, "y" * 51]):
        book.active.append(row)
    book.save(tmp_path / "f.xlsx")

    with pytest.raises(UnreadableFile, match="row 3 has more than 100 characters"):
        sizes(tmp_path / "f.xlsx")


@pytest.mark.parametrize("before", [b"", b'"q"' + b"," * 999 + b"\n"])
def test_blank_lines_of_a_csv_file_make_no_large_piece(before: bytes, tmp_path: Path) -> None:
    """Each becomes a row with all its delimiters. With a quote, the lines go through the csv module."""
    header = b",".join(b"c%d" % number for number in range(1_000)) + b"\n"
    (tmp_path / "f.csv").write_bytes(header + before + b"\n" * 20_000)

    found = sizes(tmp_path / "f.csv")

    assert sum(found) == 20_000 * 1_000 + (len(before) - 2 if before else 0)
    assert max(found) <= csv_chunks.PIECE
