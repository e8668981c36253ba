"""The way to the system: over HTTP, or straight to the database when the API is down or absent.

Both speak the same paths and give the same answers, so every verb is written once. Straight to the database means that the
API is served in this process, in memory, to this process alone (`direct.py`): the same reads, the same rules, the same audit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import httpx

from holdfast.addresses import api_at
from holdfast.cli.exits import Told, Unreachable
from holdfast.cli.stirring import Stirring
from holdfast.client import credentials
from holdfast.client.api import body_of, not_ours
from holdfast.settings import Settings

PATIENCE = httpx.Timeout(30, connect=5)
LONGEST_PAGE = 200


class Answer(NamedTuple):
    """What came back: the data, and for a list where the next page begins."""

    data: Any
    next_cursor: str | None = None


class Way(Protocol):
    """One way to the system."""

    says: str  # what is at its end, for people

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        use_case: str | None = None,
    ) -> Answer:
        """One request; raises `Told` when the answer is no. A `key` makes it safe to send twice; `use_case` says in whose
        name an engine is asked."""
        ...

    def now(self) -> datetime:
        """What time it is there."""
        ...

    def schema(self) -> tuple[str | None, str | None]:
        """The revision of the schema, and the one that is wanted there."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait until something may have changed there, and no longer than so."""
        ...

    def do_own_jobs(self) -> None:
        """Do the control plane's own jobs, if nobody at its end does."""
        ...

    def close(self) -> None: ...


class OverHttp:
    """Through the API."""

    def __init__(self, url: str, token: str | None, *, plain_http: bool = False) -> None:
        origin = api_at(url, with_token=bool(token), plain_http=plain_http)
        self.says = url
        self._date: str | None = None
        self._stirring: Stirring | None = None
        headers = {"Accept": "application/json", "User-Agent": "holdfast-cli"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=PATIENCE,
            follow_redirects=False,
            trust_env=origin.scheme == "https",  # a proxy of the environment would read along
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        use_case: str | None = None,
    ) -> Answer:
        try:
            response = self._client.request(
                method, path, params=plain_params(params), json=body, headers=headers_of(key, use_case)
            )
        except httpx.ConnectError as error:
            raise NobodyThere(self.says, error) from None
        except httpx.TransportError as error:
            raise Unreachable(f"{self.says} did not answer: {error or type(error).__name__}; it may still have acted") from None
        self._date = response.headers.get("date", self._date)
        return opened(response)

    def now(self) -> datetime:
        return self._asked_for_the_time() if self._date is None else parsedate_to_datetime(self._date)

    def _asked_for_the_time(self) -> datetime:
        self.ask("GET", "/health")
        assert self._date is not None, "every HTTP server says what time it is"
        return parsedate_to_datetime(self._date).astimezone(UTC)

    def schema(self) -> tuple[str | None, str | None]:
        try:
            ready = self.ask("GET", "/ready").data
        except Told as told:  # not ready: then it says what it has and what it needs
            if "schema_revision" not in told.problem:
                raise
            ready = told.problem
        return ready["schema_revision"], ready["wanted_revision"]

    def first_event(self, patience: float = 10.0) -> float | None:
        """How many seconds an event stream took to bring its first word; None if it brought none."""
        began = time.monotonic()
        try:
            with self._client.stream("GET", "/api/events", timeout=patience) as stream:
                brought = any(line.startswith("event:") for line in stream.iter_lines())
                return time.monotonic() - began if brought else None
        except httpx.TransportError:
            return None

    def scrape(self) -> str | None:
        """Why the metrics cannot be read; None if they can."""
        try:
            answer = self._client.get("/metrics")
        except httpx.TransportError as error:
            return str(error)
        is_ours = answer.is_success and "holdfast_build_info" in answer.text
        return None if is_ours else f"it is answered with {answer.status_code}"

    def pause(self, seconds: float) -> None:
        self._stirring = self._stirring or Stirring(self._client)
        self._stirring.wait(seconds)

    def do_own_jobs(self) -> None:
        """The server does them."""

    def close(self) -> None:
        self._client.close()


class NobodyThere(Unreachable):
    """Nothing listens there: nothing was sent, so another way may be taken."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"nobody answers at {url} ({error}); start `holdfast serve`, or use --dsn to ask the database itself")


def opened(response: httpx.Response) -> Answer:
    """The answer out of its envelope, or the problem raised. Pure."""
    body = body_of(response)
    if body is None:
        raise Unreachable(not_ours(response))
    if not response.is_success:
        retry_after = response.headers.get("retry-after")
        raise Told(response.status_code, body if retry_after is None else {"retry_after": retry_after, **body})
    return Answer(body["data"], (body.get("page") or {}).get("next_cursor"))


def every(way: Way, path: str, params: Mapping[str, Any] | None = None, *, most: int | None) -> Iterator[dict[str, Any]]:
    """The rows of a list, page by page, up to `most`."""
    cursor, left = None, most
    while left is None or left > 0:
        size = LONGEST_PAGE if left is None else min(left, LONGEST_PAGE)
        answer = way.ask("GET", path, params={**(params or {}), "limit": size, "cursor": cursor})
        yield from answer.data
        cursor, left = answer.next_cursor, None if left is None else left - len(answer.data)
        if cursor is None:
            return


def headers_of(key: str | None, use_case: str | None = None) -> dict[str, str]:
    """What goes with a request beside its body. Pure."""
    said = {"Idempotency-Key": key, "X-Use-Case-Id": use_case}
    return {name: value for name, value in said.items() if value is not None}


def plain_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters as a query string has them; those that are None are not asked for. Pure."""
    plain = {name: value for name, value in (params or {}).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in plain.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Which way
# ---------------------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """Which way to take. Pure data, so that the choice can be shown and tested."""

    api_url: str | None
    dsn: str | None
    embedded: bool
    may_fall_back: bool


def choose(settings: Settings, *, dsn: str | None, api_url: str | None, logged_in_at: str | None) -> Choice:
    """What is named on the command line counts most, then the API that is configured, then the database. Pure."""
    database = settings.database_url
    if dsn:
        return Choice(None, dsn, False, False)
    if api_url:
        return Choice(api_url, None, False, False)
    known = settings.api_url or logged_in_at
    if known:
        return Choice(known, database, database is None and settings.data_dir.exists(), True)
    return Choice(None, database, database is None, False)


def open_way(settings: Settings, *, dsn: str | None, api_url: str | None, say: Any) -> Way:
    """The way to the system that the settings, the command line and the last login name."""
    saved = credentials.load(settings)
    choice = choose(settings, dsn=dsn, api_url=api_url, logged_in_at=saved.api_url if saved else None)
    if choice.api_url is None:
        return _straight(choice.dsn, settings, say)
    token = credentials.token_for(choice.api_url, settings, saved)
    over = OverHttp(choice.api_url, token, plain_http=settings.plain_http)
    if not choice.may_fall_back or not (choice.dsn or choice.embedded):
        return over
    try:
        over.ask("GET", "/health")
    except NobodyThere:
        over.close()
        say(f"nobody answers at {choice.api_url}: asking the database itself", "yellow")
        return _straight(choice.dsn, settings, say)
    return over


def _straight(dsn: str | None, settings: Settings, say: Any) -> Way:
    # Loaded when it is needed: it brings the whole API with it.
    way: Way = import_module("holdfast.cli.direct").straight(dsn, settings, say)
    return way
