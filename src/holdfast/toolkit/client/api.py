"""Requests to one API. A request that the API postpones is repeated; no change is made twice.

The token is sent only to the given address: redirects are not followed. Each write has its own idempotency key, so it can be
repeated when no answer came.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

try:
    import httpx2
except ModuleNotFoundError as error:
    from holdfast.extras import MissingExtra

    raise MissingExtra("httpx2", "client") from error

from holdfast.addresses import api_at
from holdfast.errors import Unreachable
from holdfast.toolkit.client.problems import problem_of

TRIES = 4
LONGEST_PAUSE = 30.0  # seconds, whatever Retry-After says
PAGE = 200
UPLOAD = 600.0  # seconds: a server that stores a large file answers when it has all of it
POSTPONED = frozenset({429, 502, 503, 504})

_sleep = time.sleep  # a name that tests replace


class Api:
    """One address, one token."""

    def __init__(self, url: str, token: str | None, *, timeout: float = 30.0, plain_http: bool = False) -> None:
        origin = api_at(url, with_token=bool(token), plain_http=plain_http)
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json", "User-Agent": "holdfast-client"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx2.Timeout(timeout, connect=5),
            follow_redirects=False,
            trust_env=origin.scheme == "https",  # over plain HTTP a proxy from the environment would see the token
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """The data at this path."""
        return self._request("GET", path, params=params)["data"]

    def listed(self, path: str, *, most: int | None = None, **params: Any) -> list[dict[str, Any]]:
        """The rows of a list, up to `most` (None: all)."""
        rows: list[dict[str, Any]] = []
        cursor, left = None, most
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            answer = self._request("GET", path, params={**params, "limit": size, "cursor": cursor})
            rows += answer["data"]
            cursor = (answer.get("page") or {}).get("next_cursor")
            left = None if left is None else left - len(answer["data"])
            if cursor is None:
                break
        return rows

    def act(self, method: str, path: str, body: Any = None, *, role: str | None = None) -> Any:
        """Change something. `role`: the role under which an engine runs SQL (header X-Use-Case-Id)."""
        headers = {"Idempotency-Key": str(uuid4())}
        if role is not None:
            headers["X-Use-Case-Id"] = role
        return self._request(method, path, body=body, headers=headers)["data"]

    def upload(self, path: str, file: Path, **params: Any) -> Any:
        """Send a file as the body of a POST, piece by piece. It is not repeated by itself."""
        query = {name: value for name, value in params.items() if value is not None}
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
        try:
            with file.open("rb") as opened:
                response = self._http.post(path, params=query, content=opened, headers=headers, timeout=UPLOAD)
        except httpx2.TransportError as error:
            raise Unreachable(f"{self.url} did not answer: {str(error) or type(error).__name__}; is it running?") from None
        return _unwrapped(response)["data"]

    def content(self, method: str, path: str, body: Any = None, *, accept: str, timeout: float, **params: Any) -> bytes:
        """The body of an answer that is not wrapped in an envelope, such as rows. It must be safe to repeat the request."""
        response = self._send(method, path, params=params, body=body, headers={"Accept": accept}, timeout=timeout)
        if not response.is_success:
            _unwrapped(response)
        return response.content

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return _unwrapped(self._send(method, path, params=params, body=body, headers=headers))

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx2.Response:
        query = {name: value for name, value in (params or {}).items() if value is not None}
        limit = self._http.timeout if timeout is None else httpx2.Timeout(timeout, connect=5)
        for left in reversed(range(TRIES)):
            try:
                response = self._http.request(method, path, params=query, json=body, headers=dict(headers or {}), timeout=limit)
            except httpx2.TransportError as error:
                if not left:
                    raise Unreachable(
                        f"{self.url} did not answer: {str(error) or type(error).__name__}; is it running?"
                    ) from None
                _sleep(1.0)
                continue
            if response.status_code not in POSTPONED or not left:
                break
            _sleep(_pause(response))
        return response


def _pause(response: httpx2.Response) -> float:
    """How long to wait before the next try: what Retry-After says, up to a limit. Pure."""
    seconds = response.headers.get("retry-after", "")
    return min(float(seconds), LONGEST_PAUSE) if seconds.isdecimal() else 1.0


def _unwrapped(response: httpx2.Response) -> dict[str, Any]:
    """The body of a response, or its problem raised. Pure."""
    body = body_of(response)
    if body is None:
        raise Unreachable(not_holdfast(response))
    if not response.is_success:
        raise problem_of(response.status_code, body)
    return body


def body_of(response: httpx2.Response) -> dict[str, Any] | None:
    """The body of an answer of a Holdfast API: an envelope or a problem. None: another server answered. Pure."""
    if response.status_code == 204:
        return {"data": None}
    try:
        body = response.json() if response.content else {}
    except ValueError:
        return None
    return body if isinstance(body, dict) and ("data" in body or not response.is_success) else None


def not_holdfast(response: httpx2.Response) -> str:
    """The message for an answer that is not from a Holdfast API. Pure."""
    where, status = response.request.url, response.status_code
    return f"{where} answered {status}, but not like a Holdfast API; is the address right?"
