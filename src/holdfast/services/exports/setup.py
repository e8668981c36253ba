"""From settings to the parts of exports: which engines there are, where files go. The one place that knows both."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.services.exports.engines.opened import Engines
from holdfast.settings import Settings


@dataclass(slots=True)
class Exports:
    """What exports need in this process as long as it lives."""

    engines: Engines
    files_allowed: bool = False  # whether the SQL of mappings may name files
    root: str = ""  # where snapshots go

    async def close(self) -> None:
        await self.engines.close()


def exports_from(settings: Settings) -> Exports:
    """As these settings say."""
    return Exports(Engines({}), root="")
