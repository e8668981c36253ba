"""Nodes and edges of a graph: name, SELECT, keys, and properties with types."""

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
    """A part of a mapping. Unknown fields are refused, and it is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Property(Defined):
    """A column with its type in the graph."""

    name: Name
    type: Annotated[str, Field(max_length=64)]


class NodeDefinition(Defined):
    """A node type. Its SELECT returns the key first, then the properties, in this order."""

    label: Name
    sql: Sql
    primary_key: Property
    properties: tuple[Property, ...] = ()
    catalog: Name | None = None  # the default catalog of the SQL
    schema_name: Annotated[Name | None, Field(alias="schema")] = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @property
    def name(self) -> str:
        return self.label

    def columns(self, nodes: Mapping[str, NodeDefinition]) -> tuple[Property, ...]:
        """The columns that its SELECT must return."""
        return (self.primary_key, *self.properties)


class EdgeDefinition(Defined):
    """An edge type. Its SELECT returns the keys of the two nodes first, then the properties, in this order."""

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
        """The columns that its SELECT must return; the keys have the types of the nodes' primary keys."""
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
        """Parse the stored JSON."""
        return cls.model_validate({"nodes": nodes, "edges": edges})

    def by_label(self) -> dict[str, NodeDefinition]:
        return {node.label: node for node in self.nodes}

    def parts(self) -> list[tuple[str, Definition]]:
        """All definitions with their JSON pointers, nodes first."""
        nodes: list[tuple[str, Definition]] = [(f"/nodes/{number}", node) for number, node in enumerate(self.nodes)]
        return [*nodes, *((f"/edges/{number}", edge) for number, edge in enumerate(self.edges))]

    def stored(self) -> tuple[list[Any], list[Any]]:
        """Nodes and edges as JSON."""
        return [plain(node) for node in self.nodes], [plain(edge) for edge in self.edges]


def plain(definition: Definition) -> dict[str, Any]:
    """A definition as JSON, without fields that are not set."""
    return definition.model_dump(mode="json", by_alias=True, exclude_none=True)
