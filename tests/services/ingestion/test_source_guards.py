"""Refusals while a file, an upload or an API is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import httpx2
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingestion_factories import YEAR

from holdfast.errors import UsageError
from holdfast.services.ingestion.models.definitions import Api
from holdfast.services.ingestion.models.yaml_file import read_model
from holdfast.services.ingestion.sources import csv_chunks, pages, sheets
from holdfast.services.ingestion.sources.csv_chunks import open_csv
from holdfast.services.ingestion.sources.dialect import Dialect, UnreadableFile
from holdfast.services.ingestion.sources.opening import open_rows
from holdfast.services.ingestion.sources.pages import PagedApi, SourceRefused, SourceUnavailable, refuse_other_origin
from holdfast.services.ingestion.sources.uploads import UploadTooLarge, UploadUnreadable, plain_name, receive

COMMA = Dialect("utf-8", ",", '"', ".")


def malformed(path: Path, content: bytes) -> list[tuple[int, str]]:
    """The lines that are no rows, with their problems."""
    path.write_bytes(content)
    file = open_csv(path, COMMA)
    for _ in file.pieces():
        pass
    return [(one.line, one.problem) for one in file.malformed]


@pytest.mark.parametrize("quoted", [b"", b'"q",1\n'])
def test_a_line_with_another_number_of_fields_is_no_row(tmp_path: Path, quoted: bytes) -> None:
    """With quotes by the csv module, without them line by line."""
    found = malformed(tmp_path / "f.csv", b"a,b\n" + quoted + b"1\n1,2,3\n1,2\n")

    first = 2 + bool(quoted)
    assert found == [(first + more, f"has {count} fields; the header has 2") for more, count in ((0, 1), (1, 3))]


@pytest.mark.parametrize("quoted", [b"", b'"q",1\n'])
def test_a_line_with_a_nul_is_no_row(tmp_path: Path, quoted: bytes) -> None:
    """Postgres does not store it."""
    found = malformed(tmp_path / "f.csv", b"a,b\n" + quoted + b"nu\0l,2\n")

    assert found == [(2 + bool(quoted), "has a NUL character")]


def test_a_field_that_looks_like_the_end_of_copy_stays_a_field(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"a\n1\n\\.\n2\n")

    assert b"".join(open_csv(path, COMMA).pieces()) == b'1\n"\\."\n2\n'


def test_a_header_with_an_open_quote_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_chunks, "LONGEST_RECORD", 100)
    csv_chunks.csv.field_size_limit(100)
    path = tmp_path / "f.csv"
    path.write_bytes(b'a,"b\n' + b"1,2\n" * 100)

    try:
        with pytest.raises(UnreadableFile, match="the first line is not a header: a quote is not closed"):
            open_csv(path, COMMA)
    finally:
        csv_chunks.csv.field_size_limit(8 * 1024 * 1024)


def test_a_sample_in_another_encoding_than_said_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes("a,b\n1,ä\n".encode("cp1252"))

    with pytest.raises(UnreadableFile, match="the file is not utf-8: .*; give its encoding"):
        open_csv(path, Dialect(encoding="utf-8"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"encoding": "utf-99"}, "encoding 'utf-99' is unknown"),
        ({"delimiter": "\\"}, "must be one ASCII character"),
        ({"delimiter": "§"}, "must be one ASCII character"),
        ({"quote": ""}, "must be one ASCII character"),
        ({"quote": "ab"}, "must be one ASCII character"),
        ({"delimiter": "'", "quote": "'"}, "delimiter and quote are both"),
        ({"decimal": ";"}, "decimal separator ';' must be"),
    ],
)
def test_a_dialect_that_cannot_be_is_refused_with_its_reason(wrong: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Dialect(**wrong)


# ---------------------------------------------------------------------------------------------------------------------
# Workbooks and Parquet
# ---------------------------------------------------------------------------------------------------------------------


def test_a_workbook_with_large_sheets_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "LARGEST_UNPACKED", 1_000_000)
    with ZipFile(tmp_path / "f.xlsx", "w", ZIP_DEFLATED) as packed:
        packed.writestr("xl/worksheets/sheet1.xml", b" " * 1_000_001)

    with pytest.raises(UnreadableFile, match=r"has 1,000,001 bytes when it is unpacked, 0 of them outside of its sheets"):
        open_rows(tmp_path / "f.xlsx")


def test_an_archive_that_is_no_workbook_and_an_empty_sheet_are_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "f.zip", "w") as packed:
        packed.writestr("readme.txt", b"no workbook")
    openpyxl.Workbook().save(tmp_path / "empty.xlsx")

    with pytest.raises(UnreadableFile, match="the file is not an Excel workbook"):
        open_rows(tmp_path / "f.zip")
    with pytest.raises(UnreadableFile, match="the first sheet is empty"):
        open_rows(tmp_path / "empty.xlsx")


def test_a_parquet_file_with_bytes_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [b"1"]}), tmp_path / "f")

    with pytest.raises(UnreadableFile, match="column 'a' has the type binary; only plain columns can be ingested"):
        open_rows(tmp_path / "f")


# ---------------------------------------------------------------------------------------------------------------------
# Uploads
# ---------------------------------------------------------------------------------------------------------------------


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_an_upload_ends_at_its_limit_and_not_after_it(tmp_path: Path) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 100

    assert (await receive(body(b"x" * 1000), "", tmp_path / "f", 1000)).size == 1000
    with pytest.raises(UploadTooLarge, match="the file has more than 1,000 bytes"):
        await receive(endless(), "", tmp_path / "f", 1000)
    assert sent == 11


async def test_two_files_in_one_body_are_refused(tmp_path: Path) -> None:
    part = b"--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\nx\r\n"

    with pytest.raises(UploadUnreadable, match="the body has the field 'file' twice; send one file"):
        await receive(body(part + part + b"--b--\r\n"), "multipart/form-data; boundary=b", tmp_path / "f", 1000)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("../../a.csv", "a.csv"),
        ("C:\\x\\a.csv", "a.csv"),
        ("a\n\0b\u202e.csv", "ab.csv"),
        ("x" * 300, "x" * 255),
        ("", "upload"),
    ],
)
def test_the_name_of_a_file_is_plain(given: str, name: str) -> None:
    assert plain_name(given) == name


# ---------------------------------------------------------------------------------------------------------------------
# APIs and data models
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://a.example:80/x", "https://a.example/x", "http://b.example/x", "http://u@a.example/x"])
def test_an_origin_is_compared_with_scheme_user_and_port(url: str) -> None:
    with pytest.raises(SourceRefused, match=r"is not in HOLDFAST_INGESTION_API_ORIGINS \(http://a.example\)"):
        refuse_other_origin(Api(url=url), ["http://a.example"])

    refuse_other_origin(Api(url="http://a.example/x"), ["http://a.example"])


def test_an_address_that_is_not_http_is_refused_although_it_is_listed() -> None:
    with pytest.raises(SourceRefused):
        refuse_other_origin(Api(url="file:///etc/passwd"), ["file://"])


@pytest.mark.parametrize(
    ("status", "error"),
    [(408, SourceUnavailable), (429, SourceUnavailable), (500, SourceUnavailable), (204, SourceRefused), (401, SourceRefused)],
)
async def test_only_errors_that_may_pass_are_worth_a_retry(status: int, error: type[Exception]) -> None:
    async with source(lambda _: httpx2.Response(status, json={"data": []})) as api:
        with pytest.raises(error, match=f"answers with status {status}"):
            await api.page(None)


async def test_a_source_that_does_not_answer_is_worth_a_retry() -> None:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    async with source(fail) as api:
        with pytest.raises(SourceUnavailable, match="does not answer: ConnectError"):
            await api.page(None)


async def test_a_redirect_is_not_followed() -> None:
    asked: list[str] = []

    def redirect(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url.host))
        return httpx2.Response(302, headers={"Location": "http://elsewhere.example/"})

    async with source(redirect) as api:
        with pytest.raises(SourceRefused):
            await api.page(None)
    assert asked == ["a.example"]


async def test_a_page_that_is_too_large_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LARGEST_PAGE", 10)

    async with source(lambda _: httpx2.Response(200, json={"data": []})) as api:
        with pytest.raises(SourceRefused, match="answers without a list of objects"):
            await api.page(None)


def source(answer: Any) -> PagedApi:
    """The API of a source that answers with the result of a function; its other settings are those of the service."""
    made = PagedApi(Api(url="http://a.example/rows"), YEAR, None)
    made._client._mounts = {}
    made._client._transport = httpx2.MockTransport(answer)
    return made


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        ("a: [", "is neither YAML nor JSON"),
        ("[]", "must have a `name`"),
        ("name: co2", "must have a `name`"),
    ],
)
def test_a_file_that_is_no_data_model_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    file = tmp_path / "model.yaml"
    if content is not None:
        file.write_text(content)

    with pytest.raises(UsageError, match=says):
        read_model(file)
