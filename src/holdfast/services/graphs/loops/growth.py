"""When an instance gets more memory: sustained use, cooldown, steps. Pure.

proactive   above 80 % for 2 minutes     urgent   above 90 % for 1 minute     after OOM_KILLED   a restart with twice as much
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from holdfast.services.graphs.instances.sizing import MB, grown
from holdfast.services.graphs.instances.usage import History, Sample

Level = Literal["proactive", "urgent", "oom"]
WINDOWS: Final[tuple[tuple[Level, float, timedelta], ...]] = (
    ("urgent", 0.9, timedelta(minutes=1)),
    ("proactive", 0.8, timedelta(minutes=2)),
)
COOLDOWN: Final = timedelta(seconds=300)
MOST_STEPS: Final = 3
LONGEST_GAP: Final = timedelta(seconds=150)  # samples further apart say nothing about the time between them


@dataclass(frozen=True, slots=True)
class Growth:
    """Give it so much memory."""

    level: Level
    memory_mb: int


Refusal = Literal["cooldown", "steps", "instance_memory"]


def sustained(samples: Sequence[Sample], share: float, window: timedelta) -> bool:
    """Whether the newest samples, without a gap, are all above this share of the limit and span the window."""
    newest: Sample | None = None
    later: Sample | None = None
    for sample in sorted(samples, key=lambda one: one.at, reverse=True):
        if sample.memory_bytes <= share * sample.limit_mb * MB:
            return False
        if later is not None and later.at - sample.at > LONGEST_GAP:
            return False
        newest, later = newest or sample, sample
        if newest.at - sample.at >= window:
            return True
    return False


def level_of(samples: Sequence[Sample]) -> Level | None:
    """How urgently an instance needs more memory; None: it does not."""
    return next((level for level, share, window in WINDOWS if sustained(samples, share, window)), None)


def decide(level: Level, memory_mb: int, history: History, *, now: datetime, most_mb: int) -> Growth | Refusal:
    """How much memory an instance gets, or why it gets no more now."""
    if history.steps >= MOST_STEPS:
        return "steps"
    if history.last_at is not None and now < history.last_at + COOLDOWN:
        return "cooldown"
    more = grown(memory_mb, most_mb=most_mb)
    return "instance_memory" if more is None else Growth(level, more)
