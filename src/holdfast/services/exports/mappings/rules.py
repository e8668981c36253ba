"""The rules for mappings: all mistakes at once, each with its position and its fix. Pure.

Names are used in Cypher, paths and SQL, so they are plain identifiers, and none is a keyword of the graph database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from holdfast.errors import UsageError
from holdfast.services.exports.limits import LONGEST_SQL
from holdfast.services.exports.mappings.definitions import (
    KEY_TYPES,
    TYPES,
    EdgeDefinition,
    Graph,
    NodeDefinition,
    Property,
)

LABEL: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
EDGE_TYPE: Final = re.compile(r"[A-Z][A-Z0-9_]*")
PROPERTY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLACE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]*")
LONGEST: Final = 64
MOST_PROPERTIES: Final = 100
MOST_SQL: Final = 400_000  # characters of a whole mapping
RESERVED: Final = frozenset({
    "MATCH", "RETURN", "WHERE", "CREATE", "DELETE", "SET", "MERGE", "WITH", "UNWIND", "ORDER", "LIMIT", "SKIP", "UNION",
    "CALL", "YIELD", "OPTIONAL",
})  # fmt: skip
RESERVED_PREFIXES: Final = ("_internal_", "_system_", "_ryugraph_")


class Mistake(NamedTuple):
    """One mistake: its position as a JSON pointer, and what to do."""

    pointer: str
    message: str


class InvalidMapping(UsageError):
    """The mapping is invalid; `mistakes` has all reasons."""

    slug = "validation-failed"

    def __init__(self, mistakes: list[Mistake]) -> None:
        first = mistakes[0]
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        super().__init__(f"{first.pointer}: {first.message}{more}")
        self.mistakes = mistakes

    def members(self) -> dict[str, Any]:
        return {"errors": [mistake._asdict() for mistake in self.mistakes[:200]]}


def mistakes_of(graph: Graph) -> list[Mistake]:
    """Mistakes in the definitions, without parsing their SQL."""
    return [*_of_the_whole(graph), *_of_nodes(graph), *_of_edges(graph)]


def _of_the_whole(graph: Graph) -> Iterator[Mistake]:
    if not graph.nodes:
        yield Mistake("/nodes", "a graph needs at least one node; add one with label, sql and primary_key")
    size = sum(len(definition.sql) for _, definition in graph.parts())
    if size > MOST_SQL:
        yield Mistake("/nodes", f"the SQL of all nodes and edges has {size:,} characters; at most {MOST_SQL:,}, so use views")
    for at, definition in graph.parts():
        if len(definition.sql) > LONGEST_SQL:
            yield Mistake(f"{at}/sql", f"it has {len(definition.sql):,} characters; at most {LONGEST_SQL:,}, so use a view")
    yield from _twice(((f"/nodes/{n}/label", node.label) for n, node in enumerate(graph.nodes)), "label")
    yield from _twice(((f"/edges/{n}/type", edge.type) for n, edge in enumerate(graph.edges)), "edge type")


def _of_nodes(graph: Graph) -> Iterator[Mistake]:
    for number, node in enumerate(graph.nodes):
        at = f"/nodes/{number}"
        yield from _of_name(f"{at}/label", node.label, LABEL, "letters, digits and _, beginning with a letter")
        yield from _of_place(at, node)
        yield from _of_property(f"{at}/primary_key", node.primary_key, KEY_TYPES)
        yield from _of_properties(at, node.properties)
        names = [(f"{at}/primary_key/name", node.primary_key.name), *_named(at, node.properties)]
        yield from _twice(names, "column")


def _of_edges(graph: Graph) -> Iterator[Mistake]:
    labels = graph.by_label()
    for number, edge in enumerate(graph.edges):
        at = f"/edges/{number}"
        yield from _of_name(f"{at}/type", edge.type, EDGE_TYPE, "capital letters, digits and _, beginning with a letter")
        if edge.type in labels:  # a graph has one table per name, and so have the files of a snapshot
            yield Mistake(f"{at}/type", f"{edge.type!r} is the label of a node already; rename one of them")
        yield from _of_place(at, edge)
        for side, label in (("from_node", edge.from_node), ("to_node", edge.to_node)):
            if label not in labels:
                there = ", ".join(sorted(labels)) or "none"
                yield Mistake(f"{at}/{side}", f"there is no node {label!r}; use one of: {there}")
        for side, key in (("from_key", edge.from_key), ("to_key", edge.to_key)):
            yield from _of_name(f"{at}/{side}", key, PROPERTY, "letters, digits and _")
        yield from _of_properties(at, edge.properties)
        names = [(f"{at}/from_key", edge.from_key), (f"{at}/to_key", edge.to_key), *_named(at, edge.properties)]
        yield from _twice(names, "column")


def _of_properties(at: str, properties: tuple[Property, ...]) -> Iterator[Mistake]:
    if len(properties) > MOST_PROPERTIES:
        yield Mistake(f"{at}/properties", f"{len(properties)} properties are too many; at most {MOST_PROPERTIES}")
    for number, one in enumerate(properties):
        yield from _of_property(f"{at}/properties/{number}", one, TYPES)


def _of_property(at: str, one: Property, types: tuple[str, ...]) -> Iterator[Mistake]:
    yield from _of_name(f"{at}/name", one.name, PROPERTY, "letters, digits and _")
    if one.type not in types:
        what = "a key" if types is KEY_TYPES else "a property"
        yield Mistake(f"{at}/type", f"{one.type!r} is not a type of {what}; use one of: {', '.join(types)}")


def _of_name(at: str, name: str, form: re.Pattern[str], says: str) -> Iterator[Mistake]:
    if not form.fullmatch(name):
        yield Mistake(at, f"{name!r} is not a valid name; use {says}")
    elif len(name) > LONGEST:
        yield Mistake(at, f"{name[:20]}… has {len(name)} characters; at most {LONGEST}")
    elif name.upper() in RESERVED:
        yield Mistake(at, f"{name!r} is a keyword of Cypher; choose another name, such as {name}_")
    elif name.lower().startswith(RESERVED_PREFIXES):
        yield Mistake(at, f"{name!r} has a prefix that is reserved for the graph database; choose another name")


def _of_place(at: str, definition: NodeDefinition | EdgeDefinition) -> Iterator[Mistake]:
    for field, value in (("catalog", definition.catalog), ("schema", definition.schema_name)):
        if value is not None and not PLACE.fullmatch(value):
            yield Mistake(f"{at}/{field}", f"{value!r} is not a valid {field}; use the name that the engine has for it")


def _named(at: str, properties: tuple[Property, ...]) -> list[tuple[str, str]]:
    return [(f"{at}/properties/{number}/name", one.name) for number, one in enumerate(properties)]


def _twice(named: Iterable[tuple[str, str]], what: str) -> Iterator[Mistake]:
    """Duplicate names. Some engines and file systems ignore case, so it is ignored here."""
    seen: dict[str, str] = {}
    for at, name in named:
        first = seen.setdefault(name.casefold(), at)
        if first != at:
            yield Mistake(at, f"{what} {name!r} is a duplicate of {first}; rename or remove one of them")
