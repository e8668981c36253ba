"""Trino and Starburst over HTTP: our own statement client, and what makes an engine of it.

options.py    where it is and how it may be used          origin.py    which addresses get our credentials
transport.py  requests that end, in time and in size      messages.py  the answers, typed
statement.py  submit, advance, cancel, status by id       refusal.py   an error of Trino as one of ours
signature.py  Trino's types as Arrow's                    flat.py, nested.py, decode.py  pages into columns
rows.py       a result on its way, under a memory bound   segments.py  the spooling protocol
wording.py    the statements that we write                engine.py    the port
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.services.exports.engines.trino.options import TrinoOptions
from holdfast.services.exports.extras import loaded

if TYPE_CHECKING:  # heavy, and an extra
    from holdfast.services.exports.engines.trino.engine import TrinoEngine


def open_trino(options: TrinoOptions) -> TrinoEngine:
    """An engine on this Trino. Nothing is sent before it is asked something."""
    engine: TrinoEngine = loaded("holdfast.services.exports.engines.trino.engine").TrinoEngine(options)
    return engine
