"""What an engine is: it says what a query would return, streams the rows, and, if it can, works on its own.

Everything that exports knows of an engine is here. Rows travel as Arrow record batches whose types come from the engine's
column types and never from looking at values, so that an empty result has the same schema as a full one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.jobs.model import Json

if TYPE_CHECKING:  # heavy, and an extra
    import pyarrow as pa

CLIENT_TAG = "graph-olap-export"
SOURCE = "graph-olap-export-worker"


@dataclass(frozen=True, slots=True)
class Query:
    """One SELECT and in whose name it runs. `tag` is the attempt's: what was submitted under it can be found again."""

    sql: str
    tag: str
    catalog: str | None = None
    schema: str | None = None
    role: str | None = None  # per job and never a default: an engine that needs one refuses to run without
    source: str = SOURCE
    max_seconds: float | None = None
    session: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the engine names it: `type` in the engine's own words, `arrow` what it becomes."""

    name: str
    type: str
    arrow: pa.DataType


class Rows(Protocol):
    """A result on its way: its columns are known before its first row."""

    columns: tuple[Column, ...]

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, in batches that together never hold more than the engine's memory bound."""
        ...

    @property
    def progress(self) -> Progress:
        """How far the engine says that it is."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """What an engine says of a query that runs."""

    state: str  # in the engine's words: QUEUED, RUNNING, …
    share: float | None = None  # 0 to 1
    rows: int | None = None
    bytes: int | None = None
    queued_ahead: int | None = None


class Phase(StrEnum):
    """Where work that an engine does on its own can stand."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    GONE = "gone"  # the engine does not know it (any more): neither a success nor a failure


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at submitted work showed. `handle` replaces the one that was asked with."""

    phase: Phase
    handle: Json
    progress: Progress
    error: EngineError | None = None
    rows_written: int | None = None
    soon: bool = False  # the next look would show more at once: no need to wait
    is_adrift: bool = False  # it runs, and nobody can bring it to its end any more: stop it, and submit anew


@dataclass(frozen=True, slots=True)
class Entry:
    """One column of the engine's catalogs, for the schema cache; a table without columns has `column` None."""

    catalog: str
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    type: str | None = None
    position: int | None = None


class Engine(Protocol):
    """What every engine can do."""

    name: str

    async def describe(self, query: Query) -> tuple[Column, ...]:
        """The columns that the query would return, without running it. Raises `QueryRefused` with the engine's reason."""
        ...

    def stream(self, query: Query) -> AbstractAsyncContextManager[Rows]:
        """Run it and hand over its rows. Leaving early cancels it."""
        ...

    def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Entry]]:
        """What its catalogs hold, a list per catalog. Raises when one cannot be read: unknown is never empty."""
        ...

    async def close(self) -> None:
        """Give back connections and files."""
        ...


class Submits(Engine, Protocol):
    """What an engine can do that goes on working when nobody waits for it."""

    async def submit(self, query: Query) -> Json:
        """Start it; the handle to look at it with. Never sent twice: `SubmitUnknown` when nobody knows whether it arrived."""
        ...

    async def look(self, handle: Json, query: Query) -> Look:
        """Where it stands."""
        ...

    async def cancel(self, handle: Json, query: Query) -> None:
        """Stop it. Done also when it had ended."""
        ...

    async def find(self, tag: str, query: Query) -> Json | None:
        """The handle of what was submitted under a tag, or None when the engine surely has nothing."""
        ...

    def unload_sql(self, query: Query, location: str) -> str:
        """Its statement for writing the result as Parquet on the server's side."""
        ...

    def ctas_sql(self, query: Query, location: str) -> str:
        """The same by creating a table there, for an engine without such a function. The table is named after the tag."""
        ...

    def forget_sql(self, query: Query) -> str:
        """Lets go of the table that `ctas_sql` created and leaves its files."""
        ...


class EngineError(HoldfastError):
    """An engine said no, or said nothing that can be used. `code` is stable, for people and programs."""

    code = "engine_error"
    transient = False

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.detail = detail


class QueryRefused(EngineError):
    """The engine understood and refuses: syntax, a missing table, no permission. It will refuse again."""

    code = "engine_query_refused"


class MissingRole(QueryRefused):
    """A job without a role: no default stands in for it."""

    code = "engine_missing_role"

    def __init__(self) -> None:
        super().__init__("Missing use case ID (X-Use-Case-Id header required)")


class FunctionMissing(QueryRefused):
    """The engine does not have the function that the statement needs: another runtime must do."""

    code = "engine_function_missing"


class EngineUnavailable(EngineError):
    """Not now: overload, restart, no connection. Worth another try."""

    code = "engine_unavailable"
    transient = True


class EngineTimeout(EngineUnavailable, TimeoutError):
    """It did not answer in time, as one that was asleep does."""

    code = "engine_timeout"


class RanTooLong(EngineError):
    """It ran longer than it may, by our bound or by the engine's own. It will again."""

    code = "engine_ran_too_long"


class EngineLost(EngineError):
    """The engine no longer knows the query: it was restarted, or let it go."""

    code = "engine_lost"
    transient = True


class SubmitUnknown(EngineError):
    """The submit was sent and no answer came: it may run. Look for its tag before anything else."""

    code = "engine_submit_unknown"
    transient = True


class SubmitTimeout(SubmitUnknown, TimeoutError):
    """The submit was sent and not answered in time, as by an engine that has to start first. It may run all the same."""

    code = "engine_submit_timeout"


class ProtocolBroken(EngineError):
    """An answer that no engine should give: garbage, a body without end, a wrong query id."""

    code = "engine_protocol_error"


class UntrustedUri(EngineError):
    """The engine pointed somewhere else than to its own origin; nothing was sent there."""

    code = "engine_untrusted_uri"
