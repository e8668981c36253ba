"""Kinds of jobs: which exist, and what they declare."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.records import record


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job. `declaration` and `versions` are read by `get` only."""

    kind: str
    version: int | None
    workers: int | None
    waiting: int | None
    paused: bool | None
    drained: bool | None
    public: bool | None
    declaration: dict[str, Any] | None
    versions: list[dict[str, Any]] | None


class Kinds:
    """`hf.kinds`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def list(self) -> builtins.list[Kind]:
        """Kinds that a worker can run or has published, that have waiting jobs, or that are paused or drained."""
        rows: list[Mapping[str, Any]] = self._api.get("/api/kinds")
        return [record(Kind, row) for row in rows]

    def get(self, kind: str) -> Kind:
        """What a kind declares: `declaration` applies to new jobs, `versions` are all published versions."""
        return record(Kind, self._api.get(f"/api/kinds/{quote(kind, safe='')}"))
