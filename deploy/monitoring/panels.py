"""What dashboards are made of, and their form as JSON of Grafana. Pure.

A dashboard module has `DASHBOARD`. A dashboard or a panel that belongs to a service is generated only if the service is
registered, so that no panel can be empty because its metrics do not exist.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 24, 8
NO_METRICS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without|ignoring) *\([^)]*\)")  # matchers, ranges, label names
NAME = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?! *\()")  # no function
ZERO = " or vector(0)"


@dataclass(frozen=True)
class Query:
    """One expression, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One chart. `rare`: its series exist only after something has gone wrong, so that an empty result is good news."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    says: str = ""
    kind: str = "timeseries"
    width: int = 8
    service: str | None = None
    rare: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A page of panels in rows."""

    uid: str
    title: str
    says: str
    rows: dict[str, tuple[Panel, ...]] = field(default_factory=dict)
    service: str | None = None

    def panels(self, services: Collection[str]) -> Iterator[Panel]:
        """The panels whose service is registered."""
        for row in self.rows.values():
            yield from (panel for panel in row if panel.service is None or panel.service in services)


def metrics_of(expr: str) -> set[str]:
    """The metrics that an expression reads."""
    return set(NAME.findall(NO_METRICS.sub("", expr)))


def rate(metric: str, by: str, **labels: str) -> str:
    """The rate of a process's counter, summed over the processes."""
    return f"sum by ({by}) (rate({metric}{_matching(labels)}[$__rate_interval]))"


def per_minute(metric: str, by: str, **labels: str) -> str:
    return f"60 * {rate(metric, by, **labels)}"


def counted(metric: str, by: str = "", **labels: str) -> str:
    """The increase of a counter that is kept in the database: every replica shows the same, so the maximum."""
    return f"max{f' by ({by})' if by else ''} (increase({metric}{_matching(labels)}[$__rate_interval]))"


def most(metric: str, by: str = "", **labels: str) -> str:
    """A gauge of the database."""
    return f"max{f' by ({by})' if by else ''} ({metric}{_matching(labels)})"


def quantiles(metric: str, by: str, *wanted: float) -> tuple[Query, ...]:
    """Quantiles of a histogram, over all processes."""
    inner = f"sum by ({', '.join(filter(None, (by, 'le')))}) (rate({metric}_bucket[$__rate_interval]))"
    name = f" {{{{{by}}}}}" if by else ""
    return tuple(Query(f"histogram_quantile({one:g}, {inner})", f"p{one * 100:g}{name}") for one in wanted)


def _matching(labels: dict[str, str]) -> str:
    said = (f'{name}=~"{value}"' if re.search(r"[.|*]", value) else f'{name}="{value}"' for name, value in labels.items())
    return f"{{{','.join(said)}}}" if labels else ""


# ---------------------------------------------------------------------------------------------------------------------
# JSON
# ---------------------------------------------------------------------------------------------------------------------


def as_json(dashboard: Dashboard, services: Collection[str]) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}]},
        "panels": [*_placed(dashboard, services)],
    }


def _placed(dashboard: Dashboard, services: Collection[str]) -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, row in dashboard.rows.items():
        shown = [panel for panel in row if panel.service is None or panel.service in services]
        if not shown:
            continue
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            "panels": [],
        }
        number, y, x = number + 1, y + 1, 0
        for panel in shown:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            yield {"id": number, "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT}, **_panel(panel)}
            number, x = number + 1, x + panel.width
        y += HEIGHT


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}}
        if panel.kind == "timeseries"
        else {},
        "targets": [
            {
                "refId": chr(65 + at),
                "datasource": SOURCE,
                "expr": one.expr + (ZERO if panel.rare else ""),
                "legendFormat": one.legend or "__auto",
            }
            for at, one in enumerate(panel.queries)
        ],
    }
