"""What is wrong with a mapping: every mistake at once, each with its place and how to mend it. Pure.

The names go into Cypher, into paths and into SQL; so they are plain words, and none is one that the graph database needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from holdfast.errors import UsageError
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
LONGEST_SQL: Final = 40_000  # characters of one definition; a parser in Python reads some 100,000 in a second
MOST_SQL: Final = 400_000  # of a whole mapping
RESERVED: Final = frozenset({
    "MATCH", "RETURN", "WHERE", "CREATE", "DELETE", "SET", "MERGE", "WITH", "UNWIND", "ORDER", "LIMIT", "SKIP", "UNION",
    "CALL", "YIELD", "OPTIONAL",
})  # fmt: skip
RESERVED_PREFIXES: Final = ("_internal_", "_system_", "_ryugraph_")


class Mistake(NamedTuple):
    """One thing that is wrong: where, and what to do about it."""

    pointer: str
    message: str


class InvalidMapping(UsageError):
    """A mapping that cannot be stored; `mistakes` has every reason."""

    slug = "validation-failed"

    def __init__(self, mistakes: list[Mistake]) -> None:
        first = mistakes[0]
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        super().__init__(f"{first.pointer}: {first.message}{more}")
        self.mistakes = mistakes

    def members(self) -> dict[str, Any]:
        return {"errors": [mistake._asdict() for mistake in self.mistakes[:200]]}


def mistakes_of(graph: Graph) -> list[Mistake]:
    """Everything that is wrong with the definitions by themselves; whether the SQL is, `select.py` and the engine say."""
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
        if edge.type in labels:  # a graph has one name for one table, and so have those who ask for its files
            yield Mistake(f"{at}/type", f"{edge.type!r} is the label of a node already; rename one of them")
        yield from _of_place(at, edge)
        for side, label in (("from_node", edge.from_node), ("to_node", edge.to_node)):
            if label not in labels:
                there = ", ".join(sorted(labels)) or "none"
                yield Mistake(f"{at}/{side}", f"there is no node {label!r}; name one of: {there}")
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
        yield Mistake(f"{at}/type", f"{one.type!r} is no type of {what}; use one of: {', '.join(types)}")


def _of_name(at: str, name: str, form: re.Pattern[str], says: str) -> Iterator[Mistake]:
    if not form.fullmatch(name):
        yield Mistake(at, f"{name!r} is no name here; use {says}")
    elif len(name) > LONGEST:
        yield Mistake(at, f"{name[:20]}… has {len(name)} characters; at most {LONGEST}")
    elif name.upper() in RESERVED:
        yield Mistake(at, f"{name!r} is a word of Cypher; choose another, such as {name}_")
    elif name.lower().startswith(RESERVED_PREFIXES):
        yield Mistake(at, f"{name!r} begins like a name of the graph database's own; choose another")


def _of_place(at: str, definition: NodeDefinition | EdgeDefinition) -> Iterator[Mistake]:
    for field, value in (("catalog", definition.catalog), ("schema", definition.schema_name)):
        if value is not None and not PLACE.fullmatch(value):
            yield Mistake(f"{at}/{field}", f"{value!r} is no {field}; use the plain name that the engine knows it by")


def _named(at: str, properties: tuple[Property, ...]) -> list[tuple[str, str]]:
    return [(f"{at}/properties/{number}/name", one.name) for number, one in enumerate(properties)]


def _twice(named: Iterable[tuple[str, str]], what: str) -> Iterator[Mistake]:
    """Names that stand twice. Engines and file systems do not all tell capitals from small letters, so neither do we."""
    seen: dict[str, str] = {}
    for at, name in named:
        first = seen.setdefault(name.casefold(), at)
        if first != at:
            yield Mistake(at, f"{what} {name!r} stands at {first} already; rename or remove one of them")
