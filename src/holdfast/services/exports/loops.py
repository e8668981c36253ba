"""The periodic loops of exports."""

from __future__ import annotations

from holdfast.schedule.registry import Loop
from holdfast.settings import Settings


def loops(settings: Settings) -> list[Loop]:
    """The loops, as these settings want them."""
    return []
