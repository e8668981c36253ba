"""Mappings: nodes and edges of a graph, and the SQL of each, in versions."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.services.exports.client.mapping_file import apply_mapping, checked, read_mapping
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.records import record

Definitions = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping. `nodes` and `edges` are those of `version`; a list has none of the three."""

    id: int
    name: str
    owner: str
    engine: str
    version: int | None
    current_version: int | None
    description: str | None
    nodes: list[dict[str, Any]] | None
    edges: list[dict[str, Any]] | None
    created_at: datetime
    updated_at: datetime
    ttl: str | None
    inactivity_timeout: str | None
    expires_at: datetime | None
    inactive_at: datetime | None
    _mappings: Mappings = field(repr=False, compare=False)

    def refresh(self) -> Mapping:
        """The mapping as it is now, with its current definitions."""
        return self._mappings.get(self)

    def update(self, change_description: str, *, role: str | None = None, **changes: Any) -> Mapping:
        """Change it; changed definitions become a new version."""
        return self._mappings.update(self, change_description, role=role, **changes)

    def diff(self, before: int, after: int) -> dict[str, Any]:
        """What changed between two versions."""
        return self._mappings.diff(self, before, after)

    def copy(self, name: str) -> Mapping:
        """A copy of its current version that you own."""
        return self._mappings.copy(self, name)

    def delete(self) -> None:
        """Delete it; `Conflict` while it has snapshots."""
        self._mappings.delete(self)


class Mappings:
    """`hf.mappings`. Methods that take a mapping accept a `Mapping` or its id."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(
        self, name: str, *, nodes: Definitions, edges: Definitions = (), role: str | None = None, **options: Any
    ) -> Mapping:
        """Create a mapping; `Invalid` lists all errors at once. Options: description, engine, ttl."""
        body = {"name": name, "nodes": list(nodes), "edges": list(edges), **options}
        return self._mapping(self._api.act("POST", "/api/mappings", body, role=role))

    def apply(self, source: str | Path | dict[str, Any], *, role: str | None = None, change: str | None = None) -> Mapping:
        """Create or update the mapping that a YAML file or a dict describes; unchanged if it is the same."""
        if isinstance(source, dict):
            given, default = checked(source, "the mapping"), "applied"
        else:
            given, default = read_mapping(source), f"applied from {Path(source).name}"
        applied = apply_mapping(self._api.get, partial(self._api.act, role=role), given, change or default)
        return self._mapping(applied.mapping)

    def check(self, name: str, *, nodes: Definitions, edges: Definitions = (), role: str | None = None, **options: Any) -> None:
        """Validate a mapping and store nothing; `Invalid` lists all errors."""
        self._api.act(
            "POST", "/api/mappings/check", {"name": name, "nodes": list(nodes), "edges": list(edges), **options}, role=role
        )

    def update(self, mapping: Mapping | int, change_description: str, *, role: str | None = None, **changes: Any) -> Mapping:
        """Change a mapping; changed definitions become a new version. An omitted list stays, an empty one removes all."""
        body = {"change_description": change_description, **changes}
        return self._mapping(self._api.act("PUT", f"/api/mappings/{id_of(mapping)}", body, role=role))

    def get(self, mapping: Mapping | int) -> Mapping:
        """A mapping with its current definitions."""
        return self._mapping(self._api.get(f"/api/mappings/{id_of(mapping)}"))

    def list(
        self, *, name: str | None = None, owner: str | None = None, search: str | None = None, most: int | None = 50
    ) -> builtins.list[Mapping]:
        """Mappings without their definitions, newest first, at most `most` (None: all)."""
        rows = self._api.listed("/api/mappings", most=most, name=name, owner=owner, search=search)
        return [self._mapping(row) for row in rows]

    def diff(self, mapping: Mapping | int, before: int, after: int) -> dict[str, Any]:
        """What changed between two versions."""
        found: dict[str, Any] = self._api.get(f"/api/mappings/{id_of(mapping)}/versions/{before}/diff/{after}")
        return found

    def copy(self, mapping: Mapping | int, name: str) -> Mapping:
        """A copy of the current version that you own."""
        return self._mapping(self._api.act("POST", f"/api/mappings/{id_of(mapping)}/copy", {"name": name}))

    def delete(self, mapping: Mapping | int) -> None:
        """Delete a mapping; `Conflict` while it has snapshots."""
        self._api.act("DELETE", f"/api/mappings/{id_of(mapping)}")

    def _mapping(self, row: dict[str, Any]) -> Mapping:
        return record(Mapping, row, _mappings=self)


def id_of(mapping: Mapping | int) -> int:
    """The id of a mapping. Pure."""
    return mapping.id if isinstance(mapping, Mapping) else mapping
