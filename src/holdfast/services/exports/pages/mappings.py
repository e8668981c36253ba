"""Mappings: the list, and one mapping with its definitions, its versions, their differences, and a check by the engine."""

from __future__ import annotations

from typing import Any, Final

from holdfast.console.api_call import call
from holdfast.console.view import Shown, View
from holdfast.services.exports.mappings import store
from holdfast.services.exports.mappings.diff import diff
from holdfast.services.exports.mappings.store import MappingHead, MappingVersion
from holdfast.services.exports.snapshots import read

LENGTH: Final = 50
NEWEST: Final = 10


async def show_list(view: View) -> Shown:
    """Mappings, newest first."""
    search = view.given("search").strip() or None
    found = await store.listed(view.conn, limit=LENGTH, before=view.number("before"), search=search)
    shown = found[:LENGTH]
    older = view.here(before=shown[-1].id) if len(found) > LENGTH else None
    newest = view.here(before=None) if view.number("before") else None
    return Shown("mappings.html", {"mappings": shown, "search": search or "", "older": older, "newest": newest})


async def show_one(view: View) -> Shown:
    """One mapping; with `before` and `after` the differences between two versions, with `check` what the engine says."""
    mapping_id = view.path_number("mapping_id")
    head = await store.get(view.conn, mapping_id)
    versions = await store.versions(view.conn, mapping_id)
    by_number = {version.version: version for version in versions}
    current = by_number.get(view.number("version") or head.current_version, versions[0])
    snapshots = await read.listed(view.conn, limit=NEWEST, mapping_id=mapping_id)
    before, after = by_number.get(view.number("from") or 0), by_number.get(view.number("to") or 0)
    values = {
        "mapping": head,
        "current": current,
        "versions": versions,
        "snapshots": snapshots[:NEWEST],
        "difference": diff(before.graph, after.graph) if before and after and before is not after else None,
        "compared": (before.version, after.version) if before and after else None,
        "checked": await _checked(view, head, current) if view.given("check") == "1" and view.may("mappings.create") else None,
    }
    return Shown("mapping.html", values, title=head.name)


async def _checked(view: View, head: MappingHead, version: MappingVersion) -> dict[str, Any]:
    """What the engine says of the definitions, by the route of the API. Nothing is stored."""
    body = {"name": head.name, "engine": head.engine, "nodes": version.nodes, "edges": version.edges}
    reply = await call(view.request, "POST", "/api/mappings/check", body)
    if not reply.is_refusal:
        return {"valid": True, "sentence": f"The engine {head.engine} accepts every definition.", "errors": []}
    return {"valid": False, "sentence": reply.sentence, "errors": reply.body.get("errors") or []}
