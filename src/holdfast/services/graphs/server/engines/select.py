"""The adapter for a name: the engine of a plan, which is the `wrapper_type` of the instance."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from holdfast.errors import UsageError
from holdfast.services.graphs.server.engines.family import FamilyEngine
from holdfast.services.graphs.server.engines.port import Engine

DEFAULT: Final = "ladybug"
ENGINES: Final = ("ladybug", "kuzu", "ryugraph")


def engine_named(name: str) -> Engine:
    """The engine; `UsageError` if there is no adapter for it or it is not installed."""
    if name == "falkordb":
        raise UsageError(
            "falkordb is not supported: it is a separate server without embedded algorithms; use ladybug, kuzu or ryugraph "
            "(docs/decisions/0031)"
        )
    if name not in ENGINES:
        raise UsageError(f"there is no graph engine {name!r}; there are: {', '.join(ENGINES)}")
    if name != DEFAULT and find_spec(name) is None:
        raise UsageError(f"the graph engine {name} is not installed in the graph server: pip install {name}")
    return FamilyEngine(name)
