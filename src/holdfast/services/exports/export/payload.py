"""The payloads of export jobs. They have everything that a worker needs, so workers do not read mappings. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.jobs.model import Json, NewJob

KIND: Final = "exports.export"
RUN_KIND: Final = "exports.run"  # the only public kind of exports
Runtime = Literal["auto", "direct", "unload", "ctas"]
NODES_FIRST: Final = {"node": 0, "edge": 1}  # priorities: the lower number runs first
PAST_THE_END: Final = timedelta(seconds=60)  # the kernel stops the job so much later, if the export itself did not


class RunPayload(BaseModel):
    """The arguments of `exports.run`, as requests send them."""

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
    """One export of a node or edge: its SQL, engine and role, and the location of its files."""

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
