"""The files that an export has written. The finish publishes them as a manifest. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.jobs.model import Json

MANIFEST = "_manifest.json"


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file. Its path is relative to the destination of the export; rows and bytes are read from the file."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WrittenColumn:
    """A column with its type in the engine and its Arrow type in the files."""

    name: str
    type: str
    arrow: str


@dataclass(frozen=True, slots=True)
class Written:
    """The files of one attempt, in order, under the prefix of the attempt."""

    to: str
    job_id: int
    attempt_id: str
    files: tuple[File, ...]
    columns: tuple[WrittenColumn, ...]
    runtime: str = "direct"

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def as_json(self) -> dict[str, Json]:
        """The manifest, and the result of the job."""
        return {
            "to": self.to,
            "job_id": self.job_id,
            "attempt_id": self.attempt_id,
            "runtime": self.runtime,
            "rows": self.rows,
            "bytes": self.bytes,
            "files": [{"path": file.path, "rows": file.rows, "bytes": file.bytes} for file in self.files],
            "columns": [{"name": one.name, "type": one.type, "arrow": one.arrow} for one in self.columns],
        }


def from_json(manifest: dict[str, Json]) -> Written:
    """Parse a manifest."""
    return Written(
        to=manifest["to"],
        job_id=manifest["job_id"],
        attempt_id=manifest["attempt_id"],
        files=tuple(File(one["path"], one["rows"], one["bytes"]) for one in manifest["files"]),
        columns=tuple(WrittenColumn(one["name"], one["type"], one["arrow"]) for one in manifest["columns"]),
        runtime=manifest["runtime"],
    )


def attempt_prefix(attempt_id: str) -> str:
    """The folder of one attempt, below the destination. No other attempt writes to it."""
    return f"attempt-{attempt_id}"
