"""Mappings: which nodes and edges a graph has, and the SQL of each, in versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.client.api import Api
from holdfast.client.mapping_file import apply_mapping, checked, read_mapping
from holdfast.client.records import record

Definitions = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping with the definitions of one version."""

    id: int
    name: str
    owner: str
    engine: str
    version: int
    description: str | None
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    inactive_at: datetime | None


class Mappings:
    """`hf.mappings`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(
        self, name: str, *, nodes: Definitions, edges: Definitions = (), role: str | None = None, **options: Any
    ) -> Mapping:
        """Make one; `Invalid` says everything that is wrong with it at once. Options: description, engine, ttl."""
        body = {"name": name, "nodes": list(nodes), "edges": list(edges), **options}
        return record(Mapping, self._api.act("POST", "/api/mappings", body, role=role))

    def apply(self, said_by: str | Path | dict[str, Any], *, role: str | None = None, change: str | None = None) -> Mapping:
        """What a YAML file, or a dict, says: made if you have none of its name, changed if it differs, else left as it is."""
        if isinstance(said_by, dict):
            said, why = checked(said_by, "it"), "applied"
        else:
            said, why = read_mapping(said_by), f"applied from {Path(said_by).name}"
        applied = apply_mapping(self._api.get, partial(self._api.act, role=role), said, change or why)
        return record(Mapping, applied.mapping)

    def check(self, name: str, *, nodes: Definitions, edges: Definitions = (), role: str | None = None, **options: Any) -> None:
        """Say everything that is wrong with a mapping, as `Invalid`, and store nothing."""
        self._api.act(
            "POST", "/api/mappings/check", {"name": name, "nodes": list(nodes), "edges": list(edges), **options}, role=role
        )

    def update(self, mapping_id: int, change_description: str, *, role: str | None = None, **changes: Any) -> Mapping:
        """Change it; definitions that differ become a new version. A list that is left out stays, an empty one removes all."""
        body = {"change_description": change_description, **changes}
        return record(Mapping, self._api.act("PUT", f"/api/mappings/{mapping_id}", body, role=role))

    def get(self, mapping_id: int) -> Mapping:
        """One with its current definitions."""
        return record(Mapping, self._api.get(f"/api/mappings/{mapping_id}"))

    def list(self, *, most: int | None = 50, **filters: Any) -> Iterator[dict[str, Any]]:
        """Mappings without their definitions; filters: owner, search."""
        return self._api.listed("/api/mappings", most=most, **filters)

    def diff(self, mapping_id: int, before: int, after: int) -> dict[str, Any]:
        """What is different between two versions."""
        found: dict[str, Any] = self._api.get(f"/api/mappings/{mapping_id}/versions/{before}/diff/{after}")
        return found

    def copy(self, mapping_id: int, name: str) -> Mapping:
        """One's own copy of its current version."""
        return record(Mapping, self._api.act("POST", f"/api/mappings/{mapping_id}/copy", {"name": name}))

    def delete(self, mapping_id: int) -> None:
        """Delete it; `Conflict` while snapshots depend on it."""
        self._api.act("DELETE", f"/api/mappings/{mapping_id}")
