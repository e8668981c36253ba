"""CSV in every dialect, XLSX and Parquet as rows; the lines of a file keep their numbers."""

from __future__ import annotations

import csv
import io
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingestion_factories import FLIGHTS, Back, entries_of

from factories import rows
from holdfast.errors import UsageError
from holdfast.services.ingestion.sources import csv_chunks, sheets
from holdfast.services.ingestion.sources.csv_chunks import open_csv
from holdfast.services.ingestion.sources.dialect import Dialect, UnreadableFile, detect
from holdfast.services.ingestion.sources.opening import open_rows


def rows_of(path: Path, given: Dialect | None = None) -> tuple[list[list[str]], list[int]]:
    """What COPY would read, one row for each line, and the malformed lines."""
    file = open_csv(path, given)
    text = b"".join(file.pieces()).decode()
    return [*csv.reader(io.StringIO(text, newline=""), delimiter=file.dialect.delimiter or ",")], [
        one.line for one in file.malformed
    ]


@pytest.mark.parametrize(
    ("text", "is_trimmed"),
    [
        ("a,b c\nd,e\n", True),
        (" a,b\n", False),
        ("a,b \n", False),
        ("a ,b\n", False),
        ("a, b\n", False),
        ("a,b\n c,d\n", False),
        ("a,' b'\n", False),
        ("a,'b '\n", False),
    ],
)
@pytest.mark.parametrize("piece", [4, 512 * 1024])
def test_spaces_around_a_field_are_noticed_wherever_a_piece_begins(
    text: str, is_trimmed: bool, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then are the fields trimmed, which takes long."""
    monkeypatch.setattr(csv_chunks, "CHUNK", piece)
    path = tmp_path / "f.csv"
    path.write_text(f"x,y\n{text}")

    file = open_csv(path, Dialect("utf-8", ",", "'", "."))
    list(file.pieces())

    assert file.is_trimmed is is_trimmed


FIELDS = st.text(st.sampled_from('ab ";,\n\\.äß€0'), max_size=6)


@pytest.mark.parametrize("piece", [7, 64, 512 * 1024])
def test_pieces_of_any_size_have_the_rows_of_the_csv_module(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_chunks, "CHUNK", piece)
    path = tmp_path / "f.csv"

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), max_size=12), st.sampled_from(["\n", "\r\n"]))
    def check(table: list[list[str]], ending: str) -> None:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator=ending)
        writer.writerows([["x", "y"], *table])
        path.write_bytes(out.getvalue().encode())

        found, malformed = rows_of(path, Dialect("utf-8", ",", '"', "."))

        plain = [[field.replace("\r\n", "\n").replace("\r", "\n") for field in row] for row in table]
        assert [row for row in found if any(row)] == [row for row in plain if any(row)]
        assert malformed == []
        at = 0  # every row is at the index of its line
        for row in plain:
            assert found[at] == (row if any(row) else ["", ""])
            at += 1  # the fillers that follow a row with line breaks are rows, too
            at += sum(field.count("\n") for field in row)

    check()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n1,2\n", Dialect("utf-8", ",", '"', ".")),
        ("a;b\n1;2,5\n", Dialect("utf-8", ";", '"', ",")),
        ("a\tb\n1.234,5\t2\n", Dialect("utf-8", "\t", '"', ",")),
        ("a|b\n'1'|'2'\n'x'|'y'\n", Dialect("utf-8", "|", "'", ".")),
        ("a;b\n1.5;2\n", Dialect("utf-8", ";", '"', ".")),
        ("only\nö\n", Dialect("utf-8", ",", '"', ".")),
        ('a,b\nx,"1,5"\n', Dialect("utf-8", ",", '"', ",")),  # the only number: it is none with a decimal point
        ('a,b\n10,"1,5"\n20,2.5\n', Dialect("utf-8", ",", '"', ".")),  # as many of both
        ("a;b\n1;1,234\n", Dialect("utf-8", ";", '"', ".")),  # may be thousands, which is not decided by a guess
        ("a;b\n1;1,234\n2;0,5\n", Dialect("utf-8", ";", '"', ",")),
        ("a;b\n1.234;0,125\n", Dialect("utf-8", ";", '"', ",")),
    ],
)
def test_the_dialect_is_detected(content: str, expected: Dialect) -> None:
    assert detect(content.encode()) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "utf-16-le"])
def test_encodings_are_detected_and_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "f.csv"
    bom = "\ufeff" if encoding == "utf-16-le" else ""
    path.write_bytes(f"{bom}name;größe\nMüller;Übergröße\n".encode(encoding))

    file = open_csv(path)

    assert file.header == ["name", "größe"]
    assert b"".join(file.pieces()).decode() == "Müller;Übergröße\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"a,a\n1,2\n", "the header has 'a' twice"),
        (b"a,,b\n1,2,3\n", "column 2 has no name in the header"),
        (b"\xd0\xcf\x11\xe0....", r"old Excel file \(.xls\); save it as .xlsx or CSV"),
        (b"PK\x03\x04 no workbook", "not an Excel workbook"),
        (b"PAR1 no table", "not Parquet"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)

    with pytest.raises(UnreadableFile, match=problem):
        open_rows(path)


def test_a_file_in_another_encoding_than_said_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 100_000 + "1,ä\n".encode("cp1252"))

    with pytest.raises(UnreadableFile, match="is not utf-8: invalid continuation byte"):
        list(open_csv(path).pieces())


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_chunks, "LONGEST_RECORD", 100_000)
    path = tmp_path / "f.csv"
    path.write_bytes(b'a,b\n1,"2\n' + b"1,2\n" * 300_000)

    with pytest.raises(UnreadableFile, match="line 2 begins a row of more than 100,000 bytes; is a quote not closed"):
        list(open_csv(path).pieces())


def test_a_file_with_another_delimiter_is_not_listed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n" + b"1;2\n" * 10_001)

    with pytest.raises(UnreadableFile, match="more than 10,000 lines do not have 2 fields; is ',' the delimiter"):
        list(open_csv(path, Dialect(delimiter=",")).pieces())


@pytest.mark.parametrize(
    "wrong", [{"encoding": "utf-99"}, {"delimiter": "\n"}, {"quote": "ab"}, {"decimal": "x"}, {"delimiter": "'", "quote": "'"}]
)
def test_a_dialect_that_cannot_be_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Dialect(**wrong)


async def test_an_xlsx_file_is_ingested(back: Back, conn: Any, tmp_path: Path) -> None:
    await back.provision()
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(["trip_id", "unit_id", "date", "cabin", "distance"])
    sheet.append(["T1", "U1", date(2024, 1, 31), "economy", 12.5])
    sheet.append([])
    sheet.append([2, "U2 ", datetime(2024, 2, 1), "first", 7])  # noqa: DTZ001 - as Excel has it
    sheet.append(["T3", "U1", "soon", "first", 7, "too much"])
    book.save(tmp_path / "f.xlsx")

    run = await back.ingest((tmp_path / "f.xlsx").read_bytes())

    assert run.result == "WARNING"
    assert await entries_of(conn) == [("2", "U2", "first", Decimal(7)), ("T1", "U1", "economy", Decimal("12.5"))]
    assert run.status_message is not None
    assert "line 5: 'too much' has values beyond its 5 columns" in run.status_message


async def test_a_parquet_file_is_ingested(back: Back, conn: Any, tmp_path: Path) -> None:
    await back.provision()
    table = pa.table(
        {
            "trip_id": ["T1", "T 2, with a comma"],
            "unit_id": ["U1", "U2"],
            "date": pa.array([date(2024, 1, 31), date(2024, 2, 1)]),
            "cabin": ["economy", "first"],
            "distance": [12.5, 7.0],
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")

    run = await back.ingest((tmp_path / "f.parquet").read_bytes())

    assert run.result == "SUCCESS"
    assert await entries_of(conn) == [
        ("T 2, with a comma", "U2", "first", Decimal("7")),
        ("T1", "U1", "economy", Decimal("12.5")),
    ]


async def test_spaces_around_fields_do_not_matter(back: Back, conn: Any) -> None:
    await back.provision()

    await back.ingest(FLIGHTS.replace("T1,U1", "  T1 , U1").replace("economy,2000", " economy ,2000 "))

    assert [(key, cabin) for key, _, cabin, _ in await entries_of(conn)] == [
        ("T1", "economy"),
        ("T2", "business"),
        ("T3", "economy"),
    ]


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "LARGEST_IN_MEMORY", 1_000_000)
    with ZipFile(tmp_path / "f.xlsx", "w", ZIP_DEFLATED) as packed:
        packed.writestr("xl/sharedStrings.xml", b" " * 1_000_001)
    assert (tmp_path / "f.xlsx").stat().st_size < 10_000

    with pytest.raises(UnreadableFile, match=r"1,000,001 of them outside of its sheets; at most .* save it as CSV"):
        open_rows(tmp_path / "f.xlsx")


@pytest.mark.parametrize("suffix", ["parquet", "xlsx"])
async def test_values_that_copy_would_read_as_its_end_or_refuse_are_rows(
    back: Back, conn: Any, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"f.{suffix}"
    codes = ["U1", "\\.", 'a "quoted", one', "two\nlines", "U5"]
    if suffix == "parquet":
        pq.write_table(pa.table({"code": [*codes, "nu\0l"]}), file)
    else:
        book = openpyxl.Workbook()
        for code in ["code", *codes, "nul"]:
            book.active.append([code])
        book.save(file)

    await back.provision(file.read_bytes())

    found = await rows(conn, "SELECT code FROM holdfast.reference_values")
    assert sorted(code for (code,) in found) == sorted([*codes, "nul"])
