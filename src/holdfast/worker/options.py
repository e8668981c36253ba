"""How a worker behaves. Read by: the loop; filled by: the programs in apps/, and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from holdfast.jobs.renew import Runner

LARGEST_BATCH = 500
LOOKS = 50  # at external engines, at once, beside the jobs


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves."""

    queues: Sequence[str] = ("default",)
    concurrency: int = 10
    beat: timedelta = timedelta(seconds=5)
    poll: timedelta | None = None  # how often to look around while nothing is held; None: every second beat
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=25)
    name: str | None = None
    pod: str | None = None  # where it runs, for people
    git_sha: str | None = None  # what code it runs, for people
    runner: Runner = "worker"
    largest_batch: int = LARGEST_BATCH
    most: int | None = None  # jobs to take in all; then it behaves as if there were no more
    keep_logs: bool = True  # the last lines that handlers write, with their jobs
    max_memory: int | None = None  # bytes, of a job in a process of its own whose kind does not say
    presence: bool = False  # its database session stands for it, and it looks whose has ended
