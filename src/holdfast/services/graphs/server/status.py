"""The phase, progress and error of a graph server, as `/status` shows them. Written by the load, read by the routes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from holdfast.services.graphs.plan import EdgeTable, LoadPlan, NodeTable

Phase = Literal["loading", "ready", "failed"]
TableState = Literal["pending", "fetching", "copying", "loaded", "failed"]


@dataclass(slots=True)
class TableProgress:
    """One node or edge table. `loaded` is the number of rows that the database has counted."""

    name: str
    type: Literal["node", "edge"]
    rows: int
    state: TableState = "pending"
    loaded: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class ServerStatus:
    """What a graph server knows about itself. `instance_id` and `start_token` are None until the plan is read."""

    phase: Phase = "loading"
    instance_id: int | None = None
    start_token: str | None = None
    engine: str | None = None
    snapshot_id: int | None = None
    tables: list[TableProgress] = field(default_factory=list)
    error_code: str | None = None
    error: str | None = None
    load_seconds: float | None = None

    def planned(self, plan: LoadPlan) -> None:
        """The plan is known: every table is pending."""
        self.instance_id, self.start_token = plan.instance_id, plan.start_token
        self.engine, self.snapshot_id = plan.engine, plan.snapshot_id
        self.tables = [TableProgress(table.name, kind_of(table), table.rows) for table in plan.tables]

    def failed(self, code: str, message: str) -> None:
        """The load has failed, for good."""
        self.phase, self.error_code, self.error = "failed", code, message

    def ready(self, seconds: float) -> None:
        """Everything is loaded."""
        self.phase, self.load_seconds = "ready", round(seconds, 3)

    def rows(self, kind: Literal["node", "edge"]) -> int:
        """Rows of all loaded node or edge tables."""
        return sum(table.loaded for table in self.tables if table.type == kind)

    @property
    def share(self) -> float:
        """How much is loaded, from 0 to 1, by rows."""
        if self.phase == "ready":
            return 1.0
        whole = sum(table.rows for table in self.tables)
        return round(sum(table.loaded for table in self.tables) / whole, 4) if whole else 0.0

    def as_json(self) -> dict[str, Any]:
        """The body of `/status`."""
        return {
            "phase": self.phase,
            "instance_id": self.instance_id,
            "start_token": self.start_token,
            "engine": self.engine,
            "snapshot_id": self.snapshot_id,
            "progress": {"share": self.share, "tables": [asdict(table) for table in self.tables]},
            "rows": {"nodes": self.rows("node"), "edges": self.rows("edge")},
            "error_code": self.error_code,
            "error": self.error,
            "load_seconds": self.load_seconds,
        }


def kind_of(table: NodeTable | EdgeTable) -> Literal["node", "edge"]:
    """Whether a table has nodes or edges. Pure."""
    return "node" if isinstance(table, NodeTable) else "edge"
