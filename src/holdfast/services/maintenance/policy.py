"""Which roles may do what with tables, their maintenance and policies. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.policy import OPERATORS, READERS, Rule

ACTIONS: Final[dict[str, Rule]] = {
    "tables.read": Rule("read tables, their health, their maintenance and its savings", READERS),
    "tables.maintain": Rule("maintain a table, or plan it with a dry run", OPERATORS, permission="maintenance.tables.maintain"),
    "maintenance_policies.read": Rule("read maintenance policies", READERS),
    "maintenance_policies.write": Rule(
        "create, change or delete a maintenance policy", OPERATORS, permission="maintenance.policies.write"
    ),
}
