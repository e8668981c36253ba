"""What an export job carries: everything that is needed to run it, so that no worker ever reads a mapping. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.jobs.model import Json, NewJob

KIND: Final = "exports.export"
RUN_KIND: Final = "export.run"  # the one kind of exports that anybody who may enqueue may enqueue
Runtime = Literal["auto", "direct", "unload", "ctas"]
NODES_FIRST: Final = {"node": 0, "edge": 1}  # priorities: smaller runs first
PAST_THE_END: Final = timedelta(seconds=60)  # when the kernel ends it, should nobody else have done so


class RunPayload(BaseModel):
    """What `export.run` takes: the arguments of its function, as they come from outside."""

    model_config = ConfigDict(extra="forbid")

    sql: str
    to: str
    engine: str = "duckdb"
    catalog: str | None = None
    schema_name: Annotated[str | None, Field(alias="schema")] = None
    role: str | None = None
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """One export: which SQL, asked of whom and in whose name, and where its files go."""

    job_type: str
    entity_name: str
    engine: str
    sql: str
    columns: list[dict[str, str]]  # name and type, in the order of the files
    location: str
    snapshot_id: int | None = None
    catalog: str | None = None
    schema: str | None = None
    role: str | None = None
    runtime: Runtime = "auto"
    max_seconds: float = 3600.0

    def job(self) -> NewJob:
        """The job that runs it."""
        payload: dict[str, Json] = asdict(self)
        longest = timedelta(seconds=self.max_seconds) + PAST_THE_END
        return NewJob(KIND, payload, priority=NODES_FIRST.get(self.job_type, 0), max_runtime=longest)
