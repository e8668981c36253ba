"""The interface of an engine: a database in one file, sessions that run Cypher, results as Arrow tables.

An `Engine` opens a `Database`, once to load it and then read-only. A `Session` runs one statement at a time; it belongs to
one thread at a time, but `interrupt` may be called from any thread. Results have the same Arrow types for every engine:
nodes and edges are structs with `_ID`, `_LABEL` and, for edges, `_SRC` and `_DST`; a UUID is a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class EngineError(Exception):
    """The engine refused a statement: it is not valid, or failed while it ran."""


class ReadOnlyDatabase(EngineError):
    """The statement would change a database that is open read-only."""


class Interrupted(EngineError):
    """The statement was stopped: by its timeout or by `interrupt`."""


class PoolFull(EngineError):
    """The statement needs more memory than the buffer pool has."""


class Result(Protocol):
    """The rows of one statement. They use memory of the buffer pool until `close`."""

    columns: list[str]
    types: list[str]  # of the engine: INT64, STRING, NODE, …
    rows: int

    def arrow(self, batch_rows: int) -> pa.Table:
        """All rows, in chunks of at most `batch_rows`."""
        ...

    def close(self) -> None: ...


class Session(Protocol):
    """A connection to a database."""

    def run(self, cypher: str, parameters: Mapping[str, Any] | None = None, *, seconds: float | None = None) -> Result:
        """Run one statement and wait for its result; stop it after `seconds`. Raises `EngineError`."""
        ...

    def interrupt(self) -> None:
        """Stop the statement that runs now, if any."""
        ...

    def close(self) -> None: ...


class Database(Protocol):
    """An open database."""

    def session(self, threads: int = 0) -> Session:
        """A new session; `threads` is the number of threads that a statement may use, 0: the database's."""
        ...

    def close(self) -> None:
        """Close it. Its sessions must be closed."""
        ...


class Engine(Protocol):
    """An embedded database."""

    name: str

    @property
    def version(self) -> str: ...

    def open(self, file: Path, *, pool_bytes: int, read_only: bool, threads: int = 0) -> Database:
        """Open a database; without `read_only` it is created if it does not exist."""
        ...

    def copy(self, file: Path, to: Path) -> None:
        """Copy a database that nobody changes. It may be open read-only."""
        ...
