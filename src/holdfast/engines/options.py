"""The options of all engines: what a program decides from its settings, and engines are opened with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engines.duckdb.options import DuckDbOptions
from holdfast.engines.trino.options import TrinoOptions

if TYPE_CHECKING:
    from holdfast.engines.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How each engine is opened."""

    duckdb: DuckDbOptions = field(default_factory=DuckDbOptions)
    # None: Trino is not configured here. Made when Trino is opened, so that a mistake in it affects no other engine.
    trino: Callable[[], TrinoOptions] | None = None
    trino_role_required: bool = True  # also known where Trino itself is not configured

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> EngineOptions:
        """The options that the settings describe."""
        return cls(
            duckdb=DuckDbOptions.from_settings(settings),
            trino=None if settings.trino_url is None else partial(TrinoOptions.from_settings, settings),
            trino_role_required=settings.trino_role_required,
        )
