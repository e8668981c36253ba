"""Convert DuckDB's errors to errors of engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.engines.duckdb.sandbox import DEEPEST_EXPRESSION
from holdfast.engines.port import EngineError, EngineLost, EngineUnavailable, QueryRefused
from holdfast.extras import lazily

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
else:
    duckdb = lazily("duckdb")
    pa = lazily("pyarrow")

PASSING: Final = frozenset({"Out of Memory", "IO", "INTERNAL", "FATAL", "Connection", "TransactionContext"})

TOO_DEEP: Final = (
    f"an expression or a subquery is nested too deep for DuckDB to check (at most {DEEPEST_EXPRESSION} levels, each operator "
    "of a sum or a || counts as one); compute parts of it in a WITH clause or in a view"
)


@contextmanager
def translated_errors(*, running: bool = False) -> Iterator[None]:
    """Convert DuckDB's errors by their type. `running`: whether rows are already being read."""
    try:
        yield
    except EngineError:
        raise
    except duckdb.InterruptException as error:
        raise _interrupted(str(error)) from None
    except duckdb.OutOfMemoryException as error:
        raise _limit_exceeded(str(error)) from None
    except (duckdb.ConnectionException, duckdb.InternalException, duckdb.FatalException) as error:
        raise EngineUnavailable(str(error)) from None
    except duckdb.IOException as error:  # before rows are read: a missing file; later: a failing disk
        raise (EngineUnavailable if running else QueryRefused)(str(error)) from None
    except duckdb.PermissionException as error:
        raise QueryRefused(f"{error}; DuckDB may read only the folders in HOLDFAST_DUCKDB_DIRS") from None
    except duckdb.Error as error:
        raise QueryRefused(TOO_DEEP if "Max expression depth" in str(error) else str(error)) from None
    except (pa.ArrowException, OSError, RuntimeError) as error:
        raise arrow_error(str(error)) from None


def arrow_error(text: str) -> EngineError:
    """Convert an error of DuckDB that came through the Arrow reader: its type is only in the first words. Pure."""
    kind, found, _ = text.partition(" Error: ")
    if kind == "INTERRUPT":
        return _interrupted(text)
    if kind == "Out of Memory":
        return _limit_exceeded(text)
    return EngineUnavailable(text) if not found or kind in PASSING else QueryRefused(text)


def _interrupted(text: str) -> EngineError:
    """The error for an interrupted query that is still read: we interrupt only queries that are not. An error in one thread of
    DuckDB interrupts the others, and rarely DuckDB raises only their interrupt. Pure."""
    return EngineLost(f"the query was stopped by an error in another thread of DuckDB, which the next attempt may show: {text}")


def _limit_exceeded(text: str) -> EngineError:
    """The error for a query that exceeds the memory or disk limit. Pure.

    Only DuckDB's first line is kept: the others suggest settings that are locked here. How much is spilled depends on the query
    alone, so exceeding the disk limit is not retried.
    """
    reason = text.splitlines()[0].rstrip(".")
    if "max_temp_directory_size" in text:
        return QueryRefused(
            f"{reason}: the query needs more disk than HOLDFAST_DUCKDB_MAX_SPILL allows; "
            "raise it, or sort, group and join fewer rows"
        )
    return EngineUnavailable(f"{reason}: raise HOLDFAST_DUCKDB_MEMORY, or sort, group and join fewer rows")
