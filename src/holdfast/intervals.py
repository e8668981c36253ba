"""How often periodic loops run: the bounds, the presets, and the setting of each loop. Used by: `settings.py`."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

INTERVAL = "_job_interval_seconds"
SHORTEST_INTERVAL = 60.0  # seconds, of the loops that go through a cluster or a warehouse: their servers limit requests
SLOW_LOOPS = ("reconciliation", "lifecycle", "schema_cache", "resource_monitor")
PRESETS: dict[str, dict[str, float]] = {  # intervals in seconds; HOLDFAST_<LOOP>_JOB_INTERVAL_SECONDS counts more
    "default": {},
    "conservative": {"reconciliation": 600.0, "lifecycle": 600.0},
    "aggressive": {"reconciliation": 60.0, "lifecycle": 300.0},
}


def interval_of(loop: str) -> Any:
    """How often a loop runs, under our name and the one that the documents use."""
    name = f"{loop}{INTERVAL}".upper()
    return Field(
        default=None,
        gt=0,
        validation_alias=AliasChoices(f"HOLDFAST_{name}", f"GRAPH_OLAP_{name}"),
        description=f"How often the loop `{loop}` runs, instead of what the loop says itself.",
    )
