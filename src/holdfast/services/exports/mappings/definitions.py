"""What a node and an edge of a graph are: a name, a SELECT, keys, and properties with types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

Sql = Annotated[str, Field(min_length=1, max_length=100_000)]
Name = Annotated[str, Field(max_length=255)]

TYPES: Final = (
    "STRING", "INT64", "INT32", "INT16", "INT8", "DOUBLE", "FLOAT", "DATE", "TIMESTAMP", "BOOL", "BLOB", "UUID",
    "LIST", "MAP", "STRUCT",
)  # fmt: skip
KEY_TYPES: Final = ("STRING", "INT64", "DATE", "UUID")


class Defined(BaseModel):
    """A part of a mapping: what it does not name is refused, and it does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Property(Defined):
    """A column with a type of the graph."""

    name: Name
    type: Annotated[str, Field(max_length=64)]


class NodeDefinition(Defined):
    """A kind of node. Its SELECT returns the key first, then the properties, in this order."""

    label: Name
    sql: Sql
    primary_key: Property
    properties: tuple[Property, ...] = ()
    catalog: Name | None = None  # of the engine, for tables that the SQL names without one
    schema_name: Annotated[Name | None, Field(alias="schema")] = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @property
    def name(self) -> str:
        return self.label

    def columns(self, nodes: Mapping[str, NodeDefinition]) -> tuple[Property, ...]:
        """The columns that its SELECT must return."""
        return (self.primary_key, *self.properties)


class EdgeDefinition(Defined):
    """A kind of edge. Its SELECT returns the keys of the two nodes first, then the properties, in this order."""

    type: Name
    from_node: Name
    to_node: Name
    sql: Sql
    from_key: Name
    to_key: Name
    properties: tuple[Property, ...] = ()
    catalog: Name | None = None
    schema_name: Annotated[Name | None, Field(alias="schema")] = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @property
    def name(self) -> str:
        return self.type

    def columns(self, nodes: Mapping[str, NodeDefinition]) -> tuple[Property, ...]:
        """The columns that its SELECT must return; the keys have the types of the nodes that they lead to."""
        keys = (
            Property(name=self.from_key, type=nodes[self.from_node].primary_key.type),
            Property(name=self.to_key, type=nodes[self.to_node].primary_key.type),
        )
        return (*keys, *self.properties)


Definition = NodeDefinition | EdgeDefinition


class Graph(Defined):
    """All definitions of a version."""

    nodes: tuple[NodeDefinition, ...]
    edges: tuple[EdgeDefinition, ...] = ()

    @classmethod
    def of(cls, nodes: Sequence[Any], edges: Sequence[Any]) -> Graph:
        """From what is stored."""
        return cls.model_validate({"nodes": nodes, "edges": edges})

    def by_label(self) -> dict[str, NodeDefinition]:
        return {node.label: node for node in self.nodes}

    def parts(self) -> list[tuple[str, Definition]]:
        """Every definition with the path that names it, nodes first."""
        nodes: list[tuple[str, Definition]] = [(f"/nodes/{number}", node) for number, node in enumerate(self.nodes)]
        return [*nodes, *((f"/edges/{number}", edge) for number, edge in enumerate(self.edges))]

    def stored(self) -> tuple[list[Any], list[Any]]:
        """As JSON: nodes and edges."""
        return [plain(node) for node in self.nodes], [plain(edge) for edge in self.edges]


def plain(definition: Definition) -> dict[str, Any]:
    """As it is written by people: names that say nothing are left out."""
    return definition.model_dump(mode="json", by_alias=True, exclude_none=True)
