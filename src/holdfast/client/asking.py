"""One request and its answer. Reads are tried again; what changes something carries a key, so that trying again is harmless."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import httpx

from holdfast.errors import HoldfastError

PATIENCE: Final = httpx.Timeout(30, connect=5)
TRIES: Final = 4
WORTH_ANOTHER_TRY: Final = frozenset({429, 502, 503, 504})
LONGEST_PAUSE: Final = 10.0


class ApiError(HoldfastError):
    """The control plane said no, in its words. `code` is stable; `errors` has every mistake of a mapping."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        mistakes = "".join(f"\n  {one['pointer']}: {one['message']}" for one in problem.get("errors") or ())
        super().__init__(f"{problem.get('detail') or f'HTTP {status}'}{mistakes}")
        self.status, self.problem = status, dict(problem)
        self.code = str(problem.get("code", ""))
        self.errors: list[dict[str, str]] = list(problem.get("errors") or ())


class Asking:
    """A way to the control plane, with one credential for one address."""

    def __init__(self, url: str, token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json", "User-Agent": "holdfast-client"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE, follow_redirects=False, transport=transport
        )

    def ask(self, method: str, path: str, body: Any = None, *, use_case: str | None = None, **params: Any) -> Any:
        """The data of the answer; `ApiError` when it is no."""
        headers = {} if method == "GET" else {"Idempotency-Key": uuid4().hex}
        if use_case is not None:
            headers["X-Use-Case-Id"] = use_case
        given = {name: value for name, value in params.items() if value is not None}
        for tries in range(1, TRIES + 1):
            try:
                answer = self._http.request(method, path, json=body, params=given, headers=headers)
            except httpx.TransportError:
                if tries == TRIES:
                    raise
                time.sleep(0.2 * 2**tries)
                continue
            if answer.status_code not in WORTH_ANOTHER_TRY or tries == TRIES:
                return _opened(answer)
            time.sleep(_pause(answer, tries))
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._http.close()


def _pause(answer: httpx.Response, tries: int) -> float:
    said = answer.headers.get("retry-after", "")
    return min(float(said), LONGEST_PAUSE) if said.isdigit() else float(0.2 * 2**tries)


def _opened(answer: httpx.Response) -> Any:
    try:
        body = answer.json() if answer.content else {}
    except ValueError:
        body = {}
    if not isinstance(body, dict) or not answer.is_success or "data" not in body:
        problem = body if isinstance(body, dict) and not answer.is_success else {}
        raise ApiError(answer.status_code, problem or {"detail": f"{answer.url} does not answer as a control plane does"})
    return body["data"]
