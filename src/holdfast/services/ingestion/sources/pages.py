"""A paged HTTP API: rows as JSON objects, page by page, each with the cursor of the next one.

Only origins that the settings list are called, redirects are refused, and the token goes to these origins alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, UsageError
from holdfast.extras import lazily
from holdfast.services.ingestion.models.definitions import Api
from holdfast.services.ingestion.sources.sheets import text_of

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

PATIENCE: Final = timedelta(seconds=30)
LARGEST_PAGE: Final = 64 * 1024 * 1024  # bytes


class SourceUnavailable(HoldfastError):
    """The API does not answer, or answers with an error that may pass. The job is retried."""

    slug = "source-unavailable"


class SourceRefused(UsageError):
    """The API refuses the request, or answers with something that is no page. A retry does not help."""


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, and the cursor of the next page; None on the last one."""

    rows: list[dict[str, Any]]
    next_cursor: str | None


def refuse_other_origin(api: Api, origins: Sequence[str]) -> None:
    """Refuse an address that the settings do not list. Pure."""
    parts = urlsplit(api.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    if origin not in origins or parts.scheme not in ("http", "https"):
        raise SourceRefused(
            f"{origin} is not in HOLDFAST_INGESTION_API_ORIGINS ({', '.join(origins) or 'empty'}); add it there"
        )


class PagedApi:
    """One API, for the length of a block."""

    def __init__(self, api: Api, year: int, token: str | None) -> None:
        self._api, self._year = api, year
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = httpx2.AsyncClient(follow_redirects=False, timeout=PATIENCE.total_seconds(), headers=headers)

    async def __aenter__(self) -> PagedApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def page(self, cursor: str | None) -> Page:
        """The page at this cursor; None: the first one."""
        parameters = {} if cursor is None else {self._api.cursor_parameter: cursor}
        if self._api.year_parameter is not None:
            parameters[self._api.year_parameter] = str(self._year)
        try:
            answer = await self._client.get(self._api.url, params=parameters)
        except httpx2.HTTPError as error:
            raise SourceUnavailable(f"{self._api.url} does not answer: {type(error).__name__}") from None
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise SourceUnavailable(f"{self._api.url} answers with status {answer.status_code}")
        if answer.status_code != 200:
            raise SourceRefused(f"{self._api.url} answers with status {answer.status_code}; check its address and the token")
        return self._page(answer.content)

    def _page(self, content: bytes) -> Page:
        found: Any = None
        if len(content) <= LARGEST_PAGE:
            with suppress(ValueError):
                found = json.loads(content)
        rows = found.get(self._api.items) if isinstance(found, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SourceRefused(f"{self._api.url} answers without a list of objects in {self._api.items!r}")
        cursor = found.get(self._api.next_cursor)
        return Page(rows, None if cursor is None else str(cursor))


def write_rows(path: Path, header: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a CSV file, with a header if it is new."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(header)
        writer.writerows([text_of(row.get(name)) for name in header] for row in rows)
