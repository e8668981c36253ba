"""What DuckDB may read and how much it may use."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engines.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class DuckDbOptions:
    """How every sandbox of one engine is opened."""

    folders: tuple[Path, ...] = ()  # files below them may be read; none: no file at all
    closed: tuple[Path, ...] = ()  # resolved folders with secrets, which `folders` may not reach
    attach: Mapping[str, Path] = field(default_factory=dict)  # databases by name, read-only
    memory: str = "128MB"
    max_spill: str = "10GB"  # disk that one query may use
    threads: int | None = None  # None: one per core
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))  # where queries spill

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> DuckDbOptions:
        """The options that the settings describe."""
        return cls(
            folders=tuple(settings.duckdb_folders),
            closed=tuple(settings.closed_folders),
            attach=settings.duckdb_attach,
            memory=settings.duckdb_memory,
            max_spill=settings.duckdb_max_spill,
            threads=settings.duckdb_threads,
            scratch=settings.scratch_dir or Path(tempfile.gettempdir()),
        )
