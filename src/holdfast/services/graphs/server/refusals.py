"""Errors as HTTP answers: RFC 9457 problem details with a stable `code` and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, code: str, detail: str, advice: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.advice = status, code, detail, advice
        self.headers, self.members = dict(headers or {}), members

    @property
    def body(self) -> dict[str, Any]:
        """The problem details."""
        slug = self.code.lower().replace("_", "-")
        return {
            "type": f"/problems/{slug}",
            "title": slug.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "what_to_do": self.advice,
            **self.members,
        }


def answer(_request: Request, error: Exception) -> Response:
    """The answer to a refused request."""
    assert isinstance(error, Refusal)
    return JSONResponse(error.body, error.status, error.headers, media_type="application/problem+json")


def not_authenticated() -> Refusal:
    return Refusal(
        401, "NOT_AUTHENTICATED", "Authentication required.", "Send the instance's secret: Authorization: Bearer …",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def invalid(detail: str) -> Refusal:
    return Refusal(400, "INVALID_REQUEST", detail, "Fix what `detail` names, and send it again.")


def not_ready(phase: str, detail: str | None = None) -> Refusal:
    if phase == "failed":
        return Refusal(503, "LOAD_FAILED", detail or "The load failed.", "See /status; create the instance again.")
    return Refusal(503, "NOT_READY", f"The graph is {phase}.", "Wait until /ready answers 200.", headers={"Retry-After": "1"})


def not_found(detail: str) -> Refusal:
    return Refusal(404, "NOT_FOUND", detail, "Check the path.")
