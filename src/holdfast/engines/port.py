"""The interface of engines: describe a query, stream its rows, read the catalogs and, where supported, run without a client.

Services know nothing else of an engine. What differs between engines is declared in `Capabilities`: callers ask for a
capability and never for the name of an engine. Rows are Arrow record batches. Their types come from the engine's column types
and never from values, so an empty result has the same schema as a full one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdfast.errors import HoldfastError, UsageError
from holdfast.jobs.model import Json

if TYPE_CHECKING:  # heavy, and an extra
    import pyarrow as pa


# ---------------------------------------------------------------------------------------------------------------------
# What an engine can do
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine reads SQL, as far as checks of SQL depend on it."""

    name: str  # as sqlglot names it
    system_names: frozenset[str] = frozenset()  # catalogs in which the engine describes itself; closed to users
    system_schemas: bool = False  # whether `system_names` are closed as schemas, too
    tables_name_files: bool = False  # whether the name of a table can be the path of a file


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do and what it needs. Declared by each engine, and known without opening it."""

    dialect: Dialect
    reads_files: bool = False  # SQL may read files of the machine that runs it, in the folders of the engine's options
    submits: bool = False  # it implements `SubmittingEngine`
    needs_role: bool = False  # it refuses a query without a role


# ---------------------------------------------------------------------------------------------------------------------
# Queries and their results
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """One statement and the identity that it runs with. `tag` is unique to an attempt: a submitted query is found by it."""

    sql: str
    tag: str
    catalog: str | None = None  # for names without a catalog or schema
    schema: str | None = None
    role: str | None = None  # given by the caller; there is no default role
    max_seconds: float | None = None
    session: dict[str, str] = field(default_factory=dict)  # session properties of the engine


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result: `type` as the engine prints it, `arrow` as its values arrive."""

    name: str
    type: str
    arrow: pa.DataType


class Rows(Protocol):
    """A result that is being read. Its columns are known before its first row."""

    columns: tuple[Column, ...]

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, in batches. The engine bounds how much of the result is in memory."""
        ...

    @property
    def progress(self) -> Progress:
        """The progress that the engine reports."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """The engine's report on a running query."""

    state: str  # as the engine names it: QUEUED, RUNNING, …
    share: float | None = None  # 0 to 1
    rows: int | None = None
    bytes: int | None = None
    queued_ahead: int | None = None


class Phase(StrEnum):
    """Where a submitted query is."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    GONE = "gone"  # the engine does not know it (any more): neither a success nor a failure


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The answer to one poll. `handle` replaces the handle that was polled with."""

    phase: Phase
    handle: Json
    progress: Progress
    error: EngineError | None = None
    rows_written: int | None = None
    poll_soon: bool = False  # the next poll will have news: do not wait
    is_detached: bool = False  # it runs, and no client can drive it to its end: cancel it and submit again


@dataclass(frozen=True, slots=True)
class Entry:
    """One column of the engine's catalogs, for the schema cache. A table without columns has `column` None."""

    catalog: str
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    type: str | None = None
    position: int | None = None


# ---------------------------------------------------------------------------------------------------------------------
# Engines
# ---------------------------------------------------------------------------------------------------------------------


class Engine(Protocol):
    """What every engine does."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        ...

    async def describe(self, query: Query) -> tuple[Column, ...]:
        """The columns that the query would return, without running it. Raises `QueryRefused` with the engine's reason."""
        ...

    def stream(self, query: Query) -> AbstractAsyncContextManager[Rows]:
        """Run the query and read its rows. Leaving the block early cancels the query."""
        ...

    def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Entry]]:
        """The content of the catalogs, one list per catalog. Raises if one cannot be read: unknown is not empty."""
        ...

    async def close(self) -> None:
        """Release connections, threads and files."""
        ...


class SubmittingEngine(Engine, Protocol):
    """An engine whose queries run without a connected client (`capabilities.submits`)."""

    async def submit(self, query: Query) -> Json:
        """Start the query; the handle to poll it with. Never sent twice: `SubmitUnknown` if the answer was lost."""
        ...

    async def poll(self, handle: Json, query: Query) -> QueryStatus:
        """The status of a submitted query."""
        ...

    async def cancel(self, handle: Json, query: Query) -> None:
        """Stop a submitted query. No error if it has ended."""
        ...

    async def find(self, tag: str, query: Query) -> Json | None:
        """The handle of the query that was submitted under a tag; None if the engine certainly has none."""
        ...

    def unload_sql(self, query: Query, location: str) -> str:
        """The statement that makes the engine write the result as Parquet files to `location`."""
        ...

    def ctas_sql(self, query: Query, location: str) -> str:
        """The same with CREATE TABLE AS, for engines without an unload function. The table is named after the tag."""
        ...

    def forget_sql(self, query: Query) -> str:
        """The statement that removes the table of `ctas_sql` and keeps its files."""
        ...


def submitting(engine: Engine) -> SubmittingEngine:
    """The engine, if queries can be submitted to it; else `UsageError`."""
    if not engine.capabilities.submits:
        raise UsageError(f"queries cannot be submitted to {engine.name}; use the runtime `direct`")
    return cast("SubmittingEngine", engine)


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------


class EngineError(HoldfastError):
    """An engine failed. `code` is stable; `transient`: another attempt may succeed."""

    code = "engine_error"
    transient = False

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.detail = detail


class QueryRefused(EngineError):
    """The engine rejects the query: a syntax error, a missing table, no permission. Another attempt fails as well."""

    code = "engine_query_refused"


class MissingRole(QueryRefused):
    """The engine needs a role and the query has none. There is no default role."""

    code = "engine_missing_role"

    def __init__(self) -> None:
        super().__init__("Missing use case ID (X-Use-Case-Id header required)")


class FunctionMissing(QueryRefused):
    """The engine does not have a function that the statement needs: use another runtime."""

    code = "engine_function_missing"


class EngineUnavailable(EngineError):
    """Overload, restart or no connection."""

    code = "engine_unavailable"
    transient = True


class EngineTimeout(EngineUnavailable, TimeoutError):
    """The engine did not answer in time, for example during a cold start."""

    code = "engine_timeout"


class RanTooLong(EngineError):
    """The query exceeded a time limit, ours or the engine's."""

    code = "engine_ran_too_long"


class EngineLost(EngineError):
    """The engine no longer knows the query: it was restarted, or dropped the query."""

    code = "engine_lost"
    transient = True


class SubmitUnknown(EngineError):
    """The submit was sent and the answer was lost: the query may run. Look it up by its tag before submitting again."""

    code = "engine_submit_unknown"
    transient = True


class SubmitTimeout(SubmitUnknown, TimeoutError):
    """The submit was sent and not answered in time, for example during a cold start. The query may run."""

    code = "engine_submit_timeout"


class ProtocolBroken(EngineError):
    """The engine sent an invalid answer: malformed, too large, or about another query."""

    code = "engine_protocol_error"


class UntrustedUri(EngineError):
    """The engine named an address outside of its configured origin. No request was sent there."""

    code = "engine_untrusted_uri"
