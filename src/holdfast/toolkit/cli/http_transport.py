"""The transport through the HTTP API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2

from holdfast.addresses import api_at
from holdfast.errors import Unreachable
from holdfast.toolkit.cli.change_listener import ChangeListener
from holdfast.toolkit.cli.transport import Answer, ConnectFailed, checked_url, headers_of, query_of
from holdfast.toolkit.client.api import body_of, not_holdfast
from holdfast.toolkit.client.problems import ApiError, problem_of

TIMEOUT = httpx2.Timeout(30, connect=5)
LONG = httpx2.Timeout(600, connect=5)  # a server that stores a large file answers when it has all of it


class HttpTransport:
    """Requests to one API with one token."""

    is_http = True

    def __init__(self, url: str, token: str | None, *, plain_http: bool = False) -> None:
        url = checked_url(url)
        origin = api_at(url, with_token=bool(token), plain_http=plain_http)
        self.address = url
        self._date: str | None = None
        self._listener: ChangeListener | None = None
        headers = {"Accept": "application/json", "User-Agent": "holdfast-cli"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx2.Client(
            base_url=url,
            headers=headers,
            timeout=TIMEOUT,
            follow_redirects=False,
            trust_env=origin.scheme == "https",  # over plain HTTP a proxy from the environment would see the token
        )

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
        return unwrap(self._send(method, path, params=query_of(params), json=body, headers=headers_of(key, role)))

    def upload(self, path: str, file: Path, *, params: Mapping[str, Any] | None = None) -> Answer:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
        with file.open("rb") as opened:
            return unwrap(self._send("POST", path, params=query_of(params), content=opened, headers=headers, timeout=LONG))

    def content(self, method: str, path: str, *, body: Mapping[str, Any] | None, accept: str, timeout: float) -> bytes:
        limit = httpx2.Timeout(timeout, connect=5)
        return content_of(self._send(method, path, json=body, headers={"Accept": accept}, timeout=limit))

    def _send(self, method: str, path: str, **given: Any) -> httpx2.Response:
        try:
            response = self._client.request(method, path, **given)
        except httpx2.ConnectError as error:
            raise ConnectFailed(self.address, error) from None
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"{self.address} did not answer: {reason}; the request may have been carried out") from None
        self._date = response.headers.get("date", self._date)
        return response

    def now(self) -> datetime:
        if self._date is None:
            self.request("GET", "/health")
        assert self._date is not None, "every HTTP server sends the Date header"
        return parsedate_to_datetime(self._date).astimezone(UTC)

    def schema(self) -> tuple[str | None, str | None]:
        try:
            ready = self.request("GET", "/ready").data
        except ApiError as error:  # not ready: the problem has both revisions
            if "schema_revision" not in error.problem:
                raise
            ready = error.problem
        return ready["schema_revision"], ready["wanted_revision"]

    def first_event(self, patience: float = 10.0) -> float | None:
        """How many seconds an event stream took to bring its first event; None if it brought none."""
        began = time.monotonic()
        try:
            with self._client.stream("GET", "/api/events", timeout=patience) as stream:
                brought = any(line.startswith("event:") for line in stream.iter_lines())
                return time.monotonic() - began if brought else None
        except httpx2.TransportError:
            return None

    def scrape(self) -> str | None:
        """Why the metrics cannot be read; None if they can."""
        try:
            answer = self._client.get("/metrics")
        except httpx2.TransportError as error:
            return str(error)
        is_ours = answer.is_success and "holdfast_build_info" in answer.text
        return None if is_ours else f"the API answered {answer.status_code}"

    def wait_for_change(self, seconds: float) -> None:
        self._listener = self._listener or ChangeListener(self._client)
        self._listener.wait(seconds)

    def run_control_jobs(self) -> None:
        """The server runs them."""

    def close(self) -> None:
        self._client.close()


def content_of(response: httpx2.Response) -> bytes:
    """The body of a response as it is, or its problem raised. Pure."""
    if not response.is_success:
        unwrap(response)
    return response.content


def unwrap(response: httpx2.Response) -> Answer:
    """The data of a response, or its problem raised. Pure."""
    body = body_of(response)
    if body is None:
        raise Unreachable(not_holdfast(response))
    if not response.is_success:
        raise problem_of(response.status_code, body, response.headers.get("retry-after"))
    return Answer(body["data"], (body.get("page") or {}).get("next_cursor"))
