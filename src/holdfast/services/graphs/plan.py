"""What a graph server loads: the tables of one snapshot, in the order in which to load them, as JSON.

The control plane writes a plan when an instance starts (`instances/plans.py`), from the snapshot's own mapping version and its
published files. The graph server reads nothing else: it never asks for the mapping, which may have changed since. A server
that finds other row counts than the plan's fails with DATA_LOAD_ERROR.

Fields are added and never removed: a server ignores fields that it does not know, so an older image can read a newer plan.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A part of a plan: immutable, and without fields that are not known."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Column(Part):
    """A column with its type in the graph (STRING, INT64, …: `exports/mappings/definitions.py` has all)."""

    name: str
    type: str


class File(Part):
    """A Parquet file. `path` is complete: an absolute path, file:///…, s3://… or gs://…."""

    path: str
    rows: Count
    bytes: Count


class NodeTable(Part):
    """A node table. The columns of its files are the primary key, then the properties, in this order."""

    label: str
    primary_key: Column
    properties: tuple[Column, ...] = ()
    files: tuple[File, ...]
    rows: Count

    @property
    def name(self) -> str:
        return self.label


class EdgeTable(Part):
    """An edge table. The columns of its files are `from_key`, `to_key`, then the properties, in this order.

    The keys contain primary keys of `from_node` and `to_node` and have their types.
    """

    type: str
    from_node: str
    to_node: str
    from_key: str
    to_key: str
    properties: tuple[Column, ...] = ()
    files: tuple[File, ...]
    rows: Count

    @property
    def name(self) -> str:
        return self.type


class LoadPlan(Part):
    """Everything that one start of an instance loads. Nodes are loaded before edges."""

    instance_id: int
    start_token: str
    engine: str
    mapping_id: int
    mapping_version: int
    snapshot_id: int
    location: str
    nodes: tuple[NodeTable, ...]
    edges: tuple[EdgeTable, ...] = ()

    @property
    def tables(self) -> tuple[NodeTable | EdgeTable, ...]:
        """All tables, in the order in which to load them."""
        return (*self.nodes, *self.edges)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for table in self.tables for file in table.files)

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> LoadPlan:
        """Parse and check a plan; `pydantic.ValidationError` names what is wrong."""
        return cls.model_validate_json(text)
