"""Mappings: which nodes and edges a graph has, and the SQL of each, in versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.client.api import Api
from holdfast.client.records import record
from holdfast.errors import UsageError

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
        """What a YAML file, or a dict, says: made if there is none of its name, changed if it differs, else left as it is."""
        said = _checked(said_by, "it") if isinstance(said_by, dict) else _read(said_by)
        existing = list(self.list(name=said["name"], most=1))
        if not existing:
            rest = {key: value for key, value in said.items() if key not in ("name", "nodes", "edges")}
            return self.create(said["name"], nodes=said["nodes"], edges=said.get("edges") or (), role=role, **rest)
        now = self.get(existing[0]["id"])
        if said.get("engine", now.engine) != now.engine:
            raise UsageError(
                f"mapping {now.name!r} is for {now.engine}, and stays so; make one of another name for {said['engine']}"
            )
        changes = {"nodes": said["nodes"], "edges": said.get("edges") or []}
        if said.get("description", now.description) != now.description:
            changes["description"] = said["description"]
        applied = self.update(now.id, change or _applied(said_by), role=role, **changes)
        self._keep_for(existing[0], said)
        return applied

    def _keep_for(self, now: dict[str, Any], said: dict[str, Any]) -> None:
        """How long it lives, if that is said and differs."""
        wanted = {name: said.get(name, now[name]) for name in ("ttl", "inactivity_timeout")}
        if any(wanted[name] != now[name] for name in wanted):
            self._api.act("PUT", f"/api/mappings/{now['id']}/lifecycle", wanted)

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


def _read(file: str | Path) -> dict[str, Any]:
    yaml = import_module("yaml")
    try:
        said = yaml.safe_load(Path(file).read_text())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is no YAML: {error}") from None
    return _checked(said, str(file))


def _checked(said: Any, what: str) -> dict[str, Any]:
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or not isinstance(said.get("nodes"), list):
        raise UsageError(f"{what} must have a `name` and a list of `nodes`; `edges` are optional")
    return said


def _applied(said_by: str | Path | dict[str, Any]) -> str:
    return "applied" if isinstance(said_by, dict) else f"applied from {Path(said_by).name}"
