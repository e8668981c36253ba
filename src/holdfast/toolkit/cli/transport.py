"""How a command reaches the system: through the HTTP API, or directly through the database if the API is down or absent.

Both transports take the same paths and return the same data, so each command is written once. The HTTP one is in
`http_transport.py`. The direct one is in `holdfast.cli.direct`; each is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.addresses import without_api_path
from holdfast.errors import Unreachable, UsageError
from holdfast.toolkit.client import credentials

LONGEST_PAGE = 200
Say = Callable[..., None]


class Answer(NamedTuple):
    """The data of an answer, and for a list the cursor of the next page."""

    data: Any
    next_cursor: str | None = None


class Transport(Protocol):
    """One way to reach the system."""

    address: str  # what is at the other end, for people
    is_http: bool

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        role: str | None = None,
    ) -> Answer:
        """Send one request; raises `ApiError` if it is refused.

        `key` is the idempotency key. `role` is the role under which an engine runs SQL (header X-Use-Case-Id).
        """
        ...

    def upload(self, path: str, file: Path, *, params: Mapping[str, Any] | None = None) -> Answer:
        """Send a file as the body of a POST, piece by piece."""
        ...

    def content(self, method: str, path: str, *, body: Mapping[str, Any] | None, accept: str, timeout: float) -> bytes:
        """The body of an answer that is not wrapped in an envelope, such as rows; raises `ApiError` if it is refused."""
        ...

    def now(self) -> datetime:
        """The time of the server."""
        ...

    def schema(self) -> tuple[str | None, str | None]:
        """The revision of the schema, and the revision that the server's code needs."""
        ...

    def wait_for_change(self, seconds: float) -> None:
        """Return when something may have changed, at the latest after this time."""
        ...

    def run_control_jobs(self) -> None:
        """Run the control plane's own jobs, unless a server does."""
        ...

    def close(self) -> None: ...


class ConnectFailed(Unreachable):
    """Nothing listens at the address. Nothing was sent, so another transport may be used."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(
            f"cannot connect to {url} ({error}); start `holdfast serve`, or pass --dsn to connect to the database directly"
        )


def iterate(
    transport: Transport, path: str, params: Mapping[str, Any] | None = None, *, most: int | None
) -> Iterator[dict[str, Any]]:
    """The rows of a list, page by page, up to `most`."""
    cursor, left = None, most
    while left is None or left > 0:
        size = LONGEST_PAGE if left is None else min(left, LONGEST_PAGE)
        answer = transport.request("GET", path, params={**(params or {}), "limit": size, "cursor": cursor})
        yield from answer.data
        cursor, left = answer.next_cursor, None if left is None else left - len(answer.data)
        if cursor is None:
            return


def headers_of(key: str | None, role: str | None = None) -> dict[str, str]:
    """The headers of a request. Pure."""
    headers = {"Idempotency-Key": key, "X-Use-Case-Id": role}
    return {name: value for name, value in headers.items() if value is not None}


def query_of(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters as a query string has them, without those that are None. Pure."""
    given = {name: value for name, value in (params or {}).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Which transport
# ---------------------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """Which transport to use. Plain data, so that the choice can be tested."""

    api_url: str | None
    dsn: str | None
    embedded: bool
    may_fall_back: bool


def choose(settings: Any, *, dsn: str | None, url: str | None, logged_in_at: str | None) -> Choice:
    """Options come first, then the configured API, then the database. Pure."""
    database = settings.database_url
    if dsn:
        return Choice(None, checked_dsn(dsn), False, False)
    if url:
        return Choice(checked_url(url), None, False, False)
    api = settings.api_url or logged_in_at
    if api:
        return Choice(checked_url(api), database, database is None and settings.data_dir.exists(), True)
    return Choice(None, database, database is None, False)


def checked_url(url: str) -> str:
    """The address of an API; its `/api` is removed, since every path begins with it. Pure."""
    if url.startswith(("postgres://", "postgresql://", "host=", "dbname=")):
        raise UsageError("--url and HOLDFAST_API_URL are the address of an API (http://…); for a database pass --dsn")
    return without_api_path(url)


def checked_dsn(dsn: str) -> str:
    """The address of a database. Pure."""
    if dsn.startswith(("http://", "https://")):
        raise UsageError("--dsn is the address of a Postgres database (postgresql://…); for an API pass --url")
    return dsn


def open_transport(settings: Any, *, dsn: str | None, url: str | None, say: Say) -> Transport:
    """The transport that the options, the settings and the last login name."""
    saved = credentials.load(settings)
    choice = choose(settings, dsn=dsn, url=url, logged_in_at=saved.api_url if saved else None)
    if choice.api_url is None:
        return _direct(choice.dsn, settings, say)
    token = credentials.token_for(choice.api_url, settings, saved)
    http: Transport = import_module("holdfast.toolkit.cli.http_transport").HttpTransport(
        choice.api_url, token, plain_http=settings.plain_http
    )
    if not choice.may_fall_back or not (choice.dsn or choice.embedded):
        return http
    try:
        http.request("GET", "/health")
    except ConnectFailed:
        http.close()
        say(f"cannot connect to {choice.api_url}: using the database directly", "yellow")
        return _direct(choice.dsn, settings, say)
    return http


def _direct(dsn: str | None, settings: Any, say: Say) -> Transport:
    transport: Transport = import_module("holdfast.cli.direct").open_direct(dsn, settings, say)
    return transport
