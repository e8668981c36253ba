"""The differences between two versions of a mapping: changed nodes and edges, and the changed fields of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.services.exports.mappings.definitions import Definition, Graph, plain

ADDED, REMOVED, MODIFIED = "added", "removed", "modified"


def diff(before: Graph, after: Graph) -> dict[str, Any]:
    """The changed nodes and edges, each with its old and new definition."""
    nodes = [*_changes("label", _by_name(before.nodes), _by_name(after.nodes))]
    edges = [*_changes("type", _by_name(before.edges), _by_name(after.edges))]
    return {"summary": {**_summary("nodes", nodes), **_summary("edges", edges)}, "nodes": nodes, "edges": edges}


def _by_name(definitions: Iterable[Definition]) -> dict[str, dict[str, Any]]:
    return {definition.name: plain(definition) for definition in definitions}


def _changes(named: str, before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for name in [*before, *(name for name in after if name not in before)]:
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        kind = ADDED if was is None else REMOVED if now is None else MODIFIED
        fields = sorted(key for key in {*(was or {}), *(now or {})} if (was or {}).get(key) != (now or {}).get(key))
        yield {
            named: name,
            "change": kind,
            "fields_changed": fields if kind == MODIFIED else [],
            "from": was,
            "to": now,
        }


def _summary(what: str, changes: list[dict[str, Any]]) -> dict[str, int]:
    return {f"{what}_{kind}": sum(one["change"] == kind for one in changes) for kind in (ADDED, REMOVED, MODIFIED)}
