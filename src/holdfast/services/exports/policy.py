"""Which roles may do what with mappings, snapshots and the schema cache. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.policy import MAKERS, OPERATORS, OWN, READERS, Rule

ACTIONS: Final[dict[str, Rule]] = {
    "mappings.read": Rule("read mappings and their versions", READERS),
    "mappings.create": Rule("create or copy a mapping", MAKERS),
    "mappings.change": Rule("change or delete a mapping", OPERATORS, OWN),
    "snapshots.read": Rule("read snapshots and their exports", READERS),
    "snapshots.create": Rule("create a snapshot", OPERATORS, permission="exports.snapshots.create"),
    "snapshots.change": Rule("cancel, retry or delete a snapshot, and change how long it is kept", OPERATORS, OWN),
    "schema.read": Rule("read the schema cache: what the engines' catalogs contain", READERS),
    "schema.refresh": Rule("refresh the schema cache", OPERATORS, needs_reason=True),
}
