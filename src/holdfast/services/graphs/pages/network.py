"""Nodes and edges of a result as a drawing: which there are, where they go, and the lines between them. Pure.

The layout is force-directed and begins on a spiral, so the same result always gives the same drawing. It takes time that grows
with the square of the number of nodes; `MOST_NODES` limits it.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Key = tuple[int, int]  # table and offset, by which the engine knows a node or an edge

MOST_NODES: Final = 60
ROUNDS: Final = 60
GOLDEN: Final = math.pi * (3 - math.sqrt(5))  # the angle of a spiral that fills a disc evenly
WIDTH, HEIGHT, MARGIN, RADIUS = 880, 520, 44, 14
NAMES: Final = ("name", "title", "label", "number", "id")  # the first of these properties is written below a node
TONES: Final = ("running", "completed", "retrying", "scheduled", "claimed", "stale", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes and edges of a result."""

    nodes: dict[Key, dict[str, Any]] = field(default_factory=dict)
    edges: dict[Key, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dot:
    """A node of the drawing."""

    key: str
    label: str
    text: str
    tone: str
    x: int
    y: int
    says: str


@dataclass(frozen=True, slots=True)
class Line:
    """An edge of the drawing."""

    path: str
    label: str
    x: int
    y: int
    says: str


@dataclass(frozen=True, slots=True)
class Network:
    """A drawing."""

    dots: list[Dot]
    lines: list[Line]
    legend: list[tuple[str, str, int]]  # label, tone, how many are drawn
    hidden: int  # nodes that are not drawn
    width: int = WIDTH
    height: int = HEIGHT
    radius: int = RADIUS


def collect(rows: Iterable[Sequence[Any]], found: Found | None = None) -> Found:
    """The nodes, edges and paths in rows, at any depth."""
    found = found or Found()
    for row in rows:
        for value in row:
            _add(found, value)
    return found


def _add(found: Found, value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _add(found, one)
    elif isinstance(value, dict):
        key, start, end = key_of(value.get("_ID")), key_of(value.get("_SRC")), key_of(value.get("_DST"))
        if key and start and end:
            found.edges.setdefault(key, value)
            for place in (start, end):
                found.nodes.setdefault(place, {})
        elif key and "_LABEL" in value:
            found.nodes[key] = found.nodes.get(key) or value
        else:
            for one in value.values():
                _add(found, one)


def key_of(said: Any) -> Key | None:
    """The table and offset of an id."""
    if not isinstance(said, dict) or not isinstance(said.get("table"), int) or not isinstance(said.get("offset"), int):
        return None
    return said["table"], said["offset"]


def draw(found: Found) -> Network | None:
    """The drawing; None without nodes."""
    if not found.nodes:
        return None
    keys = list(found.nodes)[:MOST_NODES]
    drawn = set(keys)
    edges = [(one, key_of(one["_SRC"]), key_of(one["_DST"])) for one in found.edges.values()]
    edges = [(one, start, end) for one, start, end in edges if start in drawn and end in drawn]
    places = layout(keys, [(start, end) for _, start, end in edges if start and end])
    counts = Counter(label_of(found.nodes[key]) for key in keys)
    tones = {label: TONES[number % len(TONES)] for number, label in enumerate(sorted(counts))}
    return Network(
        [_dot(key, found.nodes[key], places[key], tones) for key in keys],
        _lines(edges, places),
        [(label, tones[label], counts[label]) for label in sorted(counts)],
        len(found.nodes) - len(keys),
    )


def label_of(node: Mapping[str, Any]) -> str:
    return str(node.get("_LABEL") or "not in the result")


def says_of(value: Mapping[str, Any]) -> str:
    """A node or an edge with its properties, for the pointer."""
    pairs = [f"{name}: {_short(str(one), 80)}" for name, one in value.items() if not name.startswith("_") and one is not None]
    return "\n".join([label_of(value), *pairs[:12]])


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _dot(key: Key, node: Mapping[str, Any], place: complex, tones: Mapping[str, str]) -> Dot:
    own = {name: value for name, value in node.items() if not name.startswith("_") and value is not None}
    text = next((str(own[name]) for name in NAMES if name in own), next(map(str, own.values()), f"{key[0]}:{key[1]}"))
    label = label_of(node)
    return Dot(f"{key[0]}:{key[1]}", label, _short(text, 16), tones[label], round(place.real), round(place.imag), says_of(node))


# ---------------------------------------------------------------------------------------------------------------------
# Places
# ---------------------------------------------------------------------------------------------------------------------


def layout(keys: Sequence[Key], edges: Sequence[tuple[Key, Key]]) -> dict[Key, complex]:
    """Where each node goes, within the drawing (Fruchterman and Reingold)."""
    count = len(keys)
    number = {key: place for place, key in enumerate(keys)}
    pairs = sorted({(number[start], number[end]) for start, end in edges if start != end})
    places = [cmath.rect(math.sqrt((place + 0.5) / count), GOLDEN * place) for place in range(count)]
    wanted = math.sqrt(math.pi / count)  # the distance between neighbours, in a circle of radius 1
    for turn in range(ROUNDS):
        step = 0.2 * (1 - turn / ROUNDS)
        pushed = [-3 * place for place in places]  # towards the middle, so parts without an edge between them stay near
        for one in range(count):
            for other in range(one):
                apart = places[one] - places[other] or complex(1e-3, 1e-3 * one)
                push = apart * (wanted / abs(apart)) ** 2
                pushed[one] += push
                pushed[other] -= push
        for one, other in pairs:
            apart = places[one] - places[other]
            pull = apart * abs(apart) / wanted
            pushed[one] -= pull
            pushed[other] += pull
        places = [
            place + push / max(abs(push), 1e-9) * min(abs(push), step) for place, push in zip(places, pushed, strict=True)
        ]
    return dict(zip(keys, _fitted(places), strict=True))


def _fitted(places: Sequence[complex]) -> list[complex]:
    """The places, stretched to the size of the drawing."""
    return [
        complex(x, y)
        for x, y in zip(
            _stretched([place.real for place in places], WIDTH),
            _stretched([place.imag for place in places], HEIGHT),
            strict=True,
        )
    ]


def _stretched(values: Sequence[float], size: int) -> list[float]:
    low, high = min(values), max(values)
    if high - low < 1e-6:
        return [size / 2 for _ in values]
    return [MARGIN + (value - low) / (high - low) * (size - 2 * MARGIN) for value in values]


# ---------------------------------------------------------------------------------------------------------------------
# Lines
# ---------------------------------------------------------------------------------------------------------------------


def _lines(edges: Sequence[tuple[dict[str, Any], Any, Any]], places: Mapping[Key, complex]) -> list[Line]:
    """A curve for each edge; edges between the same two nodes bend differently."""
    seen: Counter[frozenset[Key]] = Counter()
    found = []
    for one, start, end in edges:
        pair = frozenset((start, end))
        found.append(_line(one, places[start], places[end], seen[pair], turned=start > end))
        seen[pair] += 1
    return found


def _line(edge: Mapping[str, Any], start: complex, end: complex, number: int, *, turned: bool) -> Line:
    label, says = _short(label_of(edge), 20), says_of(edge)
    if start == end:
        high = RADIUS * (3 + number)
        x, y = start.real, start.imag - RADIUS
        path = f"M{x - 6:.0f},{y:.0f} C{x - high:.0f},{y - high:.0f} {x + high:.0f},{y - high:.0f} {x + 6:.0f},{y:.0f}"
        return Line(path, label, round(x), round(y - high * 0.8), says)
    way = (end - start) / (abs(end - start) or 1)
    bend = (number + 1) // 2 * (26 if number % 2 else -26) * (-1 if turned else 1)
    middle = (start + end) / 2 + way * 1j * bend
    first, last = start + _towards(start, middle) * RADIUS, end + _towards(end, middle) * (RADIUS + 5)
    path = f"M{first.real:.1f},{first.imag:.1f} Q{middle.real:.1f},{middle.imag:.1f} {last.real:.1f},{last.imag:.1f}"
    at = (first + 2 * middle + last) / 4
    return Line(path, label, round(at.real), round(at.imag), says)


def _towards(start: complex, end: complex) -> complex:
    return (end - start) / (abs(end - start) or 1)
