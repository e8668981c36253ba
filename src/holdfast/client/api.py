"""Requests and answers: one HTTP client to one origin. What is put off is asked again; nothing is ever done twice.

The token goes to the address that was given, and nowhere else: no redirect is followed. Each write has an idempotency key of
its own, so it may be sent again when no answer came.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx

from holdfast.addresses import api_at
from holdfast.client.problems import problem_of
from holdfast.errors import Unreachable

TRIES = 4
LONGEST_PAUSE = 30.0  # seconds, whatever Retry-After says
PAGE = 200
PUT_OFF = frozenset({429, 502, 503, 504})

_sleep = time.sleep  # by a name of its own, so that a test need not wait


class Api:
    """One address, one token."""

    def __init__(self, url: str, token: str | None, *, timeout: float = 30.0, plain_http: bool = False) -> None:
        origin = api_at(url, with_token=bool(token), plain_http=plain_http)
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json", "User-Agent": "holdfast-client"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=5),
            follow_redirects=False,
            trust_env=origin.scheme == "https",  # a proxy of the environment would read along
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """One thing, as it is now."""
        return self._ask("GET", path, params=params)["data"]

    def listed(self, path: str, *, most: int | None = None, **params: Any) -> Iterator[dict[str, Any]]:
        """The rows of a list, page by page, up to `most`."""
        cursor, left = None, most
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            answer = self._ask("GET", path, params={**params, "limit": size, "cursor": cursor})
            yield from answer["data"]
            cursor = (answer.get("page") or {}).get("next_cursor")
            left = None if left is None else left - len(answer["data"])
            if cursor is None:
                return

    def act(self, method: str, path: str, body: Any = None, *, role: str | None = None) -> Any:
        """Change something. `role`: in whose name the engine is asked (X-Use-Case-Id)."""
        headers = {"Idempotency-Key": str(uuid4())}
        if role is not None:
            headers["X-Use-Case-Id"] = role
        return self._ask(method, path, body=body, headers=headers)["data"]

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        asked = {name: value for name, value in (params or {}).items() if value is not None}
        for left in reversed(range(TRIES)):
            try:
                response = self._http.request(method, path, params=asked, json=body, headers=dict(headers or {}))
            except httpx.TransportError as error:
                if not left:
                    raise Unreachable(f"{self.url} did not answer: {error or type(error).__name__}; is it running?") from None
                _sleep(1.0)
                continue
            if response.status_code not in PUT_OFF or not left:
                break
            _sleep(_pause(response))
        return _opened(response)


def _pause(response: httpx.Response) -> float:
    """How long to wait before the next try: what the answer says, within reason. Pure."""
    said = response.headers.get("retry-after", "")
    return min(float(said), LONGEST_PAUSE) if said.isdecimal() else 1.0


def _opened(response: httpx.Response) -> dict[str, Any]:
    """The answer, or the problem raised. Pure."""
    body = body_of(response)
    if body is None:
        raise Unreachable(not_ours(response))
    if not response.is_success:
        raise problem_of(response.status_code, body)
    return body


def body_of(response: httpx.Response) -> dict[str, Any] | None:
    """What a Holdfast API answered: an envelope or a problem. None: it was somebody else. Pure."""
    try:
        body = response.json() if response.content else {}
    except ValueError:
        return None
    return body if isinstance(body, dict) and ("data" in body or not response.is_success) else None


def not_ours(response: httpx.Response) -> str:
    """What to say then. Pure."""
    where, status = response.request.url, response.status_code
    return f"{where} answered {status}, and not as a Holdfast API does; is the address right?"
