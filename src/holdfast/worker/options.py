"""How a worker behaves. Read by: the loop; filled by: the programs in apps/, and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

LARGEST_BATCH = 500


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves."""

    queues: Sequence[str] = ("default",)
    concurrency: int = 10
    beat: timedelta = timedelta(seconds=5)
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=30)
    name: str | None = None
    largest_batch: int = LARGEST_BATCH
