"""A pipeline as a layered graph: jobs with equal kind and equal position become one box. Pure.

The layer of a job is one more than the deepest job that it came after. Boxes of a layer are stacked; edges are curves from one
layer to a later one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.console.views.pipeline import Node

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 232, 58, 64, 18, 12
MOST_BOXES: Final = 200
WORST_FIRST: Final = ("failed", "running", "submitted", "pending", "blocked", "cancelled", "completed")


@dataclass(frozen=True, slots=True)
class Box:
    """A box: one job, or several with equal kind and position."""

    key: int
    kind: str
    jobs: tuple[Node, ...]
    x: int
    y: int

    @property
    def counts(self) -> Counter[str]:
        return Counter(job.state for job in self.jobs)

    @property
    def state(self) -> str:
        """The state that needs attention most."""
        return next((state for state in WORST_FIRST if self.counts[state]), "pending")


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes and the curves between them."""

    boxes: list[Box]
    curves: list[str]
    width: int
    height: int
    box_width: int = WIDTH
    box_height: int = HEIGHT


def draw(nodes: Sequence[Node]) -> Drawing | None:
    """The graph; None if it would have too many boxes, or is empty."""
    layers = layers_of(nodes)
    groups: dict[tuple[int, str, tuple[int, ...]], list[Node]] = defaultdict(list)
    group_of: dict[int, tuple[int, str, tuple[int, ...]]] = {}
    keys: dict[tuple[int, str, tuple[int, ...]], int] = {}
    for node in sorted(nodes, key=lambda node: (layers[node.id], node.id)):
        before = tuple(sorted({keys[group_of[parent]] for parent in node.before if parent in group_of}))
        group = (layers[node.id], node.kind, before)
        keys.setdefault(group, len(keys))
        group_of[node.id] = group
        groups[group].append(node)
    if not groups or len(groups) > MOST_BOXES:
        return None
    return _placed(groups, keys)


def layers_of(nodes: Sequence[Node]) -> dict[int, int]:
    """The layer of each job. Jobs come after jobs with smaller ids only, so one pass is enough."""
    found: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        found[node.id] = 1 + max((found[parent] for parent in node.before if parent in found), default=-1)
    return found


def _placed(
    groups: dict[tuple[int, str, tuple[int, ...]], list[Node]], keys: dict[tuple[int, str, tuple[int, ...]], int]
) -> Drawing:
    rows: Counter[int] = Counter(layer for layer, _, _ in groups)
    tallest, placed = max(rows.values()), Counter[int]()
    boxes: dict[int, Box] = {}
    for group, jobs in groups.items():
        layer, kind, _ = group
        free = (tallest - rows[layer]) * (HEIGHT + GAP_Y) // 2
        x, y = MARGIN + layer * (WIDTH + GAP_X), MARGIN + free + placed[layer] * (HEIGHT + GAP_Y)
        placed[layer] += 1
        boxes[keys[group]] = Box(keys[group], kind, tuple(jobs), x, y)
    curves = [_curve(boxes[parent], boxes[keys[group]]) for group in groups for parent in group[2]]
    width = 2 * MARGIN + len(rows) * (WIDTH + GAP_X) - GAP_X
    return Drawing(list(boxes.values()), curves, width, 2 * MARGIN + tallest * (HEIGHT + GAP_Y) - GAP_Y)


def _curve(start: Box, end: Box) -> str:
    x1, y1, x2, y2 = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}"
