"""Trino and Starburst over HTTP: our own statement client, and what makes an engine of it.

options.py    where it is and how it may be used          origin.py    which addresses get our credentials
transport.py  requests that end, in time and in size      messages.py  the answers, typed
statement.py  submit, advance, cancel, status by id       refusal.py   an error of Trino as one of ours
signature.py  Trino's types as Arrow's                    flat.py, nested.py, decode.py  pages into columns
rows.py       a result on its way, under a memory bound   segments.py  the spooling protocol
wording.py    the statements that we write                engine.py    the port
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.services.exports.engines.trino.options import TrinoOptions

if TYPE_CHECKING:  # heavy, and an extra
    from holdfast.services.exports.engines.trino.engine import TrinoEngine

EXTRA = ("msgspec", "pyarrow")


def open_trino(options: TrinoOptions) -> TrinoEngine:
    """An engine on this Trino. Nothing is sent before it is asked something."""
    try:
        module = importlib.import_module("holdfast.services.exports.engines.trino.engine")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in EXTRA:
            raise
        raise UsageError(f"exports from Trino need {missing.name}; install holdfast[exports]") from None
    engine: TrinoEngine = module.TrinoEngine(options)
    return engine
