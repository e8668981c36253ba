"""From samples to the ten figures: ratios with goals. Pure: no clock, no database.

A ratio is taken within each round and the median of the rounds is the figure: peers of one round ran within seconds of
each other, so that a slow minute of the machine changes both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Values = Mapping[str, Mapping[str, Sequence[float]]]
OURS = "holdfast"
LIBRARIES = ("pgqueuer", "procrastinate")


@dataclass(frozen=True)
class Figure:
    """One promise about speed, and what was measured; no value where a side is missing."""

    name: str
    meaning: str
    goal: float
    better: Literal["higher", "lower"]
    value: float | None
    against: str | None = None

    @property
    def is_met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal


def figures(values: Values) -> list[Figure]:
    """All ten, in the order of the report."""
    best_enqueue = best(values, "enqueue_one", LIBRARIES, max)
    best_pickup = best(values, "pickup_p50_ms", (*LIBRARIES, "raw"), min)
    idle = values.get("idle_beyond_heartbeat_per_second", {}).get(OURS)
    return [
        against_peer(values, "drain_vs_pgqueuer", "drain, one worker", 2.5, "drain_one", "pgqueuer"),
        against_peer(values, "drain_vs_raw", "drain, one worker", 0.55, "drain_one", "raw"),
        against_self(values, "drain_two_vs_one", "two workers to one", 1.0, "drain_two", "drain_one"),
        against_peer(values, "enqueue_bulk_vs_raw", "bulk enqueue", 0.6, "enqueue_bulk", "raw"),
        against_peer(values, "enqueue_one_vs_best_peer", "enqueue one by one", 1.0, "enqueue_one", best_enqueue),
        against_peer(values, "chain_vs_raw", "a step of a chain", 0.7, "chain_mean_ms", "raw", "lower"),
        against_peer(
            values, "pickup_p50_vs_best_peer", "pick-up when idle, p50", 1.0, "pickup_p50_ms", best_pickup, "lower"
        ),
        against_self(values, "drain_1m_vs_20k", "deep table to small", 0.8, "drain_from_deep", "drain_from_small"),
        against_self(
            values, "drain_blocked_vs_20k", "beside a crowd at a lock", 0.8, "drain_beside_blocked", "drain_unblocked"
        ),
        Figure(
            "idle_statements_per_second", "idle, beyond the heartbeat", 0.2, "lower", median(idle) if idle else None
        ),
    ]  # fmt: skip


def against_peer(
    values: Values,
    name: str,
    meaning: str,
    goal: float,
    metric: str,
    peer: str | None,
    better: Literal["higher", "lower"] = "higher",
) -> Figure:
    """Ours over a peer's, of one metric."""
    rows = values.get(metric, {})
    value = ratio(rows.get(OURS), rows.get(peer) if peer else None)
    return Figure(name, meaning, goal, better, value, peer)


def against_self(values: Values, name: str, meaning: str, goal: float, metric: str, basis: str) -> Figure:
    """Ours over ours, of two metrics."""
    value = ratio(values.get(metric, {}).get(OURS), values.get(basis, {}).get(OURS))
    return Figure(name, meaning, goal, "higher", value, basis)


def best(values: Values, metric: str, peers: Sequence[str], choose: Callable[..., str]) -> str | None:
    """The peer with the best median, among those measured."""
    rows = {peer: median(numbers) for peer, numbers in values.get(metric, {}).items() if peer in peers}
    return choose(rows, key=lambda peer: rows[peer]) if rows else None


def ratio(ours: Sequence[float] | None, theirs: Sequence[float] | None) -> float | None:
    """The median of the ratios of the rounds that both took part in."""
    if not ours or not theirs:
        return None
    return median(mine / other for mine, other in zip(ours, theirs, strict=False))
