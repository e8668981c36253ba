"""Ask a graph server for its status. Called by: the runtime `local`, the start job, the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.extras import lazily
from holdfast.services.graphs.states import ERROR_CODES

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

TIMEOUT = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a graph server says of itself."""

    phase: Literal["loading", "ready", "failed"]
    start_token: str | None
    progress: Any
    rows: Any
    error_code: str | None
    error: str | None


async def read_status(client: httpx2.AsyncClient, address: str, secret: str) -> ServerStatus | None:
    """The status; None: it did not answer in time, or not as a graph server does."""
    try:
        answer = await client.get(
            f"{address.rstrip('/')}/status", headers={"Authorization": f"Bearer {secret}"}, timeout=TIMEOUT
        )
        return status_of(answer.json()) if answer.status_code == 200 else None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        return None


def status_of(said: Any) -> ServerStatus | None:
    """The status from a response; None if it is not one. Pure."""
    if not isinstance(said, dict) or said.get("phase") not in ("loading", "ready", "failed"):
        return None
    code = said.get("error_code")
    return ServerStatus(
        phase=said["phase"],
        start_token=said.get("start_token"),
        progress=said.get("progress") if isinstance(said.get("progress"), dict) else {},
        rows=said.get("rows"),
        error_code=code if code in ERROR_CODES else None,
        error=None if said.get("error") is None else str(said["error"]),
    )
