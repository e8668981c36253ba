"""The settings for the intervals of periodic loops. Used by: `settings.py` and the settings of services."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.environment import names

INTERVAL = "_job_interval_seconds"
SHORTEST_INTERVAL = 60.0  # seconds, for loops that list a cluster or a warehouse, whose servers limit requests


def interval_of(loop: str, least: float | None = None) -> Any:
    """The setting for the interval of a loop; `least`: the shortest interval that is allowed."""
    bound: dict[str, Any] = {"gt": 0} if least is None else {"ge": least}
    return Field(
        default=None,
        json_schema_extra=names(f"GRAPH_OLAP_{loop}{INTERVAL}".upper()),
        description=f"Interval of the loop `{loop}`, instead of its default.",
        **bound,
    )
