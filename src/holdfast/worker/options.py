"""How a worker behaves. `WorkerOptions.from_settings` is the only place that reads these settings, for every runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from holdfast.jobs.given import a_count, a_memory, a_queue, a_span, listed, wrong
from holdfast.jobs.renew import Runner

LARGEST_BATCH = 500
POLL_LANES = 50  # polls of external engines at once, in addition to the jobs


class WorkerSettings(Protocol):
    """The settings that a worker follows. `holdfast.settings` has them; the kernel does not import it."""

    @property
    def beat_seconds(self) -> float: ...
    @property
    def poll_seconds(self) -> float: ...
    @property
    def lease(self) -> float: ...
    @property
    def grace(self) -> float: ...
    @property
    def hostname(self) -> str | None: ...
    @property
    def pod(self) -> str | None: ...
    @property
    def git_sha(self) -> str | None: ...
    @property
    def keep_job_logs(self) -> bool: ...
    @property
    def job_max_memory(self) -> str | None: ...
    @property
    def rescue_on_disconnect(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves."""

    queues: Sequence[str] = ("default",)
    concurrency: int = 10
    beat: timedelta = timedelta(seconds=5)
    poll: timedelta | None = None  # how often to poll while no jobs are held; None: at every second heartbeat
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=25)
    name: str | None = None
    pod: str | None = None  # shown with the worker
    git_sha: str | None = None  # shown with the worker
    runner: Runner = "worker"
    largest_batch: int = LARGEST_BATCH
    most: int | None = None  # jobs to take in total; then it behaves as if there were no more
    keep_logs: bool = True  # store the last log lines of handlers with their jobs
    max_memory: int | None = None  # bytes, for run_in="process" kinds without max_memory
    presence: bool = False  # keep a database session open, and rescue jobs of workers whose session has ended

    def __post_init__(self) -> None:
        queues = listed("queues", self.queues, "'default'")
        if not queues:
            raise wrong("queues", self.queues, "a worker needs at least one queue; use queues=['default']")
        for queue in queues:
            a_queue(queue)
        for name in ("concurrency", "largest_batch", *(() if self.most is None else ("most",))):
            a_count(name, getattr(self, name))
        for name in ("beat", "lease", *(() if self.poll is None else ("poll",))):
            a_span(name, getattr(self, name))
        if self.lease <= self.beat:
            raise wrong("lease", self.lease, f"must be longer than the heartbeat of {self.beat}; use at least three times that")

    @classmethod
    def from_settings(cls, settings: WorkerSettings, *, runner: Runner = "worker", **chosen: Any) -> WorkerOptions:
        """The options that the settings ask for; `chosen` are those that a command or a program chooses itself.

        An application that runs jobs polls as often as it is told; any other worker at least at every second heartbeat.
        """
        poll = settings.poll_seconds if runner == "in process" else min(settings.poll_seconds, 2 * settings.beat_seconds)
        memory = settings.job_max_memory
        options: dict[str, Any] = {
            "beat": timedelta(seconds=settings.beat_seconds),
            "poll": timedelta(seconds=poll),
            "lease": timedelta(seconds=settings.lease),
            "grace": timedelta(seconds=settings.grace),
            "name": settings.hostname,
            "pod": settings.pod,
            "git_sha": settings.git_sha,
            "runner": runner,
            "keep_logs": settings.keep_job_logs,
            "max_memory": None if memory is None else a_memory("HOLDFAST_JOB_MAX_MEMORY", memory),
            "presence": settings.rescue_on_disconnect and runner != "remote",
        }
        return cls(**options | chosen)
