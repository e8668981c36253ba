"""DuckDB in this process: it reads attached databases and files below allowed folders, and nothing else.

engine.py   the interface of engines              sandbox.py  one locked-down database per query
guard.py    which SQL may run                     folders.py  folders that it may never read
spill.py    folders for spill files                types.py    types that Arrow does not have
options.py  how it is opened                      errors.py   its errors as errors of engines
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.engines.duckdb.options import DuckDbOptions
from holdfast.engines.port import Capabilities, Dialect
from holdfast.extras import loaded

if TYPE_CHECKING:
    from holdfast.engines.duckdb.engine import DuckDbEngine
    from holdfast.engines.options import EngineOptions

DIALECT: Final = Dialect(
    "duckdb",
    system_names=frozenset({"information_schema", "pg_catalog", "system"}),
    system_schemas=True,
    tables_name_files=True,
)
CAPABILITIES: Final = Capabilities(DIALECT, reads_files=True)


def capabilities(options: EngineOptions) -> Capabilities:
    """What DuckDB can do. It does not depend on the options."""
    return CAPABILITIES


def is_configured(options: EngineOptions) -> bool:
    """Always true: DuckDB needs no server."""
    return True


def open_engine(options: EngineOptions) -> DuckDbEngine:
    """Open DuckDB with its options."""
    return open_duckdb(options.duckdb)


def open_duckdb(options: DuckDbOptions) -> DuckDbEngine:
    """Return an engine with these options. The folders are checked now; each query opens a database."""
    engine: DuckDbEngine = loaded("holdfast.engines.duckdb.engine").open_duckdb(options)
    return engine
