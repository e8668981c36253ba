"""One HTTP client to one origin: questions out, answers or our own errors back. Made by: `remote.py`.

The token goes to the configured origin only: no redirect is followed, and no proxy is taken from the environment. An answer
that did not come, or did not come from the API, is `Unreachable`, like a database that was lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

try:
    import httpx2
except ModuleNotFoundError as error:
    from holdfast.extras import MissingExtra

    raise MissingExtra("httpx2", "client") from error

from holdfast.addresses import api_at
from holdfast.errors import (
    CancelRequested,
    ClaimLost,
    HoldfastError,
    NotFound,
    PayloadInvalid,
    Refused,
    Unreachable,
)
from holdfast.jobs.model import Claim, Json

BASE = "/api/worker"
LARGEST_ANSWER = 64_000_000  # bytes: a full batch of the largest claims
LONGEST_PAUSE = 30.0  # seconds: whatever Retry-After says
TRIES = 4  # of a request that was put off
RESENDS = 8  # of a request whose connection was cut

_sleep = asyncio.sleep  # by a name of its own, so that a test need not wait
Token = str | Callable[[], str]


class TokenRefused(Unreachable):
    """The API does not accept this worker's token."""


class ApiBroke(Unreachable):
    """The API met a fault of its own on this request, and may do so again."""

    is_fault = True


class NotAnswered(Unreachable):
    """The connection was cut, or no answer came in time; what became of the request is unknown."""


class WorkerUnknown(Unreachable):
    """The API does not know this worker, or not this path; the next beat registers it again."""


class ApiConnection:
    """One client to one origin: requests out, answers or our own errors back."""

    def __init__(
        self, url: str, token: Token | None, *, timeout: float = 15.0, most: int = 20, plain_http: bool = False
    ) -> None:
        api_at(url, with_token=token is not None, plain_http=plain_http)
        self._token = token
        self._timeout = timeout
        self._client = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(timeout, connect=5.0),
            limits=httpx2.Limits(max_connections=most, keepalive_expiry=3.0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        claim: Claim | None = None,
        repeat: bool = True,
        resend: bool = False,
        wait: float = 0.0,
    ) -> Any:
        """The answer as JSON. `repeat`: asking twice does no harm, so a request that is put off may be sent again.

        `resend`: the same when its connection is cut, for a caller that cannot try again by itself.
        """
        operation = path.rsplit("/", 1)[-1]
        send = self._resend if resend else self._send
        for _ in range(TRIES):
            response, text = await send(method, path, body, claim, wait)
            if not _is_put_off(response):
                break
            await _sleep(_pause(response))
            if response.status_code != 429 and not repeat:  # it may have been written: look before it is sent again
                break
        if response.is_success:
            return _parsed(text)
        raise _error_of(response, text, claim, operation)

    async def ask(self, field: str, method: str, path: str, body: Json = None, **how: Any) -> Any:
        """One field of the answer; an answer without it did not come from the API."""
        answer = await self.call(method, path, body, **how)
        if not isinstance(answer, dict) or field not in answer:
            raise Unreachable(f"the answer to {method} {path} has no {field!r}; who answered?")
        return answer[field]

    async def _resend(
        self, method: str, path: str, body: Json, claim: Claim | None, wait: float
    ) -> tuple[httpx2.Response, bytes]:
        """Send it until it is answered, for as long as one request may take: a server that hangs is asked once."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._timeout, 0.1
        for _ in range(RESENDS - 1):
            try:
                return await self._send(method, path, body, claim, wait)
            except NotAnswered:
                if loop.time() + pause >= until:
                    raise
            await _sleep(pause)
            pause = min(pause * 2, 2.0)
        return await self._send(method, path, body, claim, wait)

    async def _send(
        self, method: str, path: str, body: Json, claim: Claim | None, wait: float
    ) -> tuple[httpx2.Response, bytes]:
        content = None if body is None else _as_body(body)
        timeout = httpx2.Timeout(self._timeout + wait, connect=5.0)
        try:
            async with self._client.stream(
                method, BASE + path, content=content, headers=self._headers(claim), timeout=timeout
            ) as response:
                raw = bytearray()
                async for chunk in response.aiter_bytes():
                    raw += chunk
                    if len(raw) > LARGEST_ANSWER:
                        raise Unreachable(f"the answer to {method} {path} has more than {LARGEST_ANSWER:,} bytes")
                return response, bytes(raw)
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise NotAnswered(f"{method} {path}: {type(error).__name__}: {error}") from error

    def _headers(self, claim: Claim | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token if isinstance(self._token, str) else self._token()}"
        if claim is not None:
            headers["If-Match"] = f'"{claim.attempt_id}"'
        return headers


def _as_body(said: Json) -> bytes:
    try:
        return json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadInvalid(f"this is not JSON: {error}; use plain dicts, lists, strings and numbers") from None


def _is_put_off(response: httpx2.Response) -> bool:
    """Too many requests, no database, or another transaction has the row."""
    return response.status_code in (429, 503) or (response.status_code == 409 and "retry-after" in response.headers)


def _pause(response: httpx2.Response) -> float:
    """As long as the server asks for, within reason. A date instead of seconds is not worth a clock."""
    said = response.headers.get("retry-after", "1")
    return min(float(said), LONGEST_PAUSE) if said.replace(".", "", 1).isdigit() else 1.0


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise Unreachable(f"the answer is not JSON: {error}") from None


def _error_of(response: httpx2.Response, text: bytes, claim: Claim | None, operation: str) -> HoldfastError:
    """What an answer that is no success means here."""
    problem = _problem(text)
    status, code = response.status_code, str(problem.get("code", "")).lower().replace("_", "-")
    detail = str(problem.get("detail") or f"{response.request.method} {response.request.url.path} was answered with {status}")
    if status == 412 and claim is not None:
        return ClaimLost(claim.id, claim.attempt_id, operation)
    if code == "cancel-requested" and claim is not None:
        return CancelRequested(claim.id, problem.get("reason"))
    if code == "reserved-kind":  # the token is accepted: another try is refused, too
        return PayloadInvalid(detail)
    if 300 <= status < 400:
        return Unreachable(f"the API wants to send us elsewhere ({status}); give its own address, redirects are not followed")
    if status in (401, 403):
        return TokenRefused(f"the API does not accept this worker's token ({status}): {detail}")
    if status == 404:
        return NotFound(detail) if claim is not None else WorkerUnknown(detail)
    if status in (413, 422):
        return PayloadInvalid(detail)
    if 400 <= status < 500 and not _is_put_off(response):
        return Refused(detail)
    return ApiBroke(detail) if status == 500 else Unreachable(detail)


def _problem(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
