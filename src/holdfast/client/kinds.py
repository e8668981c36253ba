"""Kinds of jobs: which there are, and what they declare."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from holdfast.client.api import Api


class Kinds:
    """`hf.kinds`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def list(self) -> list[dict[str, Any]]:
        """Every kind that a worker can run or has published, that waits, or that is paused or drained."""
        found: list[dict[str, Any]] = self._api.get("/api/kinds")
        return found

    def get(self, kind: str) -> dict[str, Any]:
        """What a kind declares: `declaration` is what new jobs are made by, `versions` are all that were published."""
        found: dict[str, Any] = self._api.get(f"/api/kinds/{quote(kind, safe='')}")
        return found
