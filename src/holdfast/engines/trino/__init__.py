"""Trino and Starburst over HTTP: our own client of the statement protocol, behind the interface of engines.

engine.py     the interface of engines                     options.py   where Trino is and how it is used
statement.py  submit, advance, cancel, status by query id  messages.py  the answers, typed
transport.py  bounded requests                             origin.py    which addresses get our credentials
backoff.py    backoff and Retry-After                      errors.py    errors of Trino as errors of engines
rows.py       reads a result within a memory limit         segments.py  the spooling protocol
signature.py  Trino types as Arrow types                   flat.py, nested.py, text.py, decode.py  pages to columns
sql.py        the SQL that this client writes itself
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.engines.port import Capabilities, Dialect
from holdfast.engines.trino.options import TrinoOptions
from holdfast.errors import UsageError
from holdfast.extras import loaded

if TYPE_CHECKING:  # heavy, and an extra
    from holdfast.engines.options import EngineOptions
    from holdfast.engines.trino.engine import TrinoEngine

DIALECT: Final = Dialect("trino", system_names=frozenset({"system", "jmx"}))
CAPABILITIES: Final = Capabilities(DIALECT, submits=True, needs_role=True)


def capabilities(options: EngineOptions) -> Capabilities:
    """What Trino can do. The options say whether it needs a role."""
    return replace(CAPABILITIES, needs_role=options.trino_role_required)


def is_configured(options: EngineOptions) -> bool:
    """Whether the options have the address of a Trino."""
    return options.trino is not None


def open_engine(options: EngineOptions) -> TrinoEngine:
    """Open Trino with its options."""
    if options.trino is None:
        raise UsageError("Trino is not configured; set HOLDFAST_TRINO_URL and HOLDFAST_TRINO_USER")
    return open_trino(options.trino())


def open_trino(options: TrinoOptions) -> TrinoEngine:
    """Return an engine for this Trino. It sends its first request when it is used."""
    engine: TrinoEngine = loaded("holdfast.engines.trino.engine").TrinoEngine(options)
    return engine
