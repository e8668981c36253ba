"""DuckDB's errors in the words of the port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.services.exports.engines.duckdb.sandbox import DEEPEST_EXPRESSION
from holdfast.services.exports.engines.port import EngineError, EngineLost, EngineUnavailable, QueryRefused
from holdfast.services.exports.extras import lazily

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
def as_ours(*, running: bool = False) -> Iterator[None]:
    """Translate DuckDB's errors, by their type and by whether rows were on their way."""
    try:
        yield
    except EngineError:
        raise
    except duckdb.InterruptException as error:
        raise EngineLost(f"the query was stopped: {error}") from None
    except duckdb.OutOfMemoryException as error:
        raise _without_room(str(error)) from None
    except (duckdb.ConnectionException, duckdb.InternalException, duckdb.FatalException) as error:
        raise EngineUnavailable(str(error)) from None
    except duckdb.IOException as error:  # before it runs a file that is not there; while it runs a disk that fails
        raise (EngineUnavailable if running else QueryRefused)(str(error)) from None
    except duckdb.PermissionException as error:
        raise QueryRefused(f"{error}; HOLDFAST_DUCKDB_DIRS names the folders that DuckDB may read") from None
    except duckdb.Error as error:
        raise QueryRefused(TOO_DEEP if "Max expression depth" in str(error) else str(error)) from None
    except (pa.ArrowException, OSError, RuntimeError) as error:
        raise passed_on(str(error)) from None


def passed_on(text: str) -> EngineError:
    """An error of DuckDB that came through the Arrow reader, which keeps its type only as the first words. Pure."""
    kind, found, _ = text.partition(" Error: ")
    if kind == "INTERRUPT":
        return EngineLost(f"the query was stopped: {text}")
    if kind == "Out of Memory":
        return _without_room(text)
    return EngineUnavailable(text) if not found or kind in PASSING else QueryRefused(text)


def _without_room(text: str) -> EngineError:
    """Memory or disk has ended. What DuckDB says after its first line names settings that are locked here. Pure.

    How much is spilled depends on the query alone, so another attempt would end the same way.
    """
    said = text.splitlines()[0].rstrip(".")
    if "max_temp_directory_size" in text:
        return QueryRefused(
            f"{said}: the query needs more disk than HOLDFAST_DUCKDB_MAX_SPILL allows; "
            "raise it, or sort, group and join fewer rows"
        )
    return EngineUnavailable(f"{said}: raise HOLDFAST_DUCKDB_MEMORY, or sort, group and join fewer rows")
