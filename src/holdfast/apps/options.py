"""How the settings make a worker behave, in one place for every runner. Called by: the programs in apps/ and cli/."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.jobs.given import a_memory
from holdfast.jobs.renew import Runner
from holdfast.settings import Settings
from holdfast.worker.options import WorkerOptions


def worker_options(given: Settings, *, runner: Runner, **more: Any) -> WorkerOptions:
    """The options of a worker that runs in this very process; `more` are those that no setting names."""
    return WorkerOptions(
        beat=timedelta(seconds=given.beat_seconds),
        lease=timedelta(seconds=given.lease),
        grace=grace_of(given),
        name=given.hostname,
        runner=runner,
        keep_logs=given.keep_job_logs,
        max_memory=max_memory_of(given),
        **more,
    )


def max_memory_of(given: Settings) -> int | None:
    """What a job in a process of its own may allocate, unless its kind says so itself."""
    return None if given.job_max_memory is None else a_memory("HOLDFAST_JOB_MAX_MEMORY", given.job_max_memory)


def grace_of(given: Settings) -> timedelta:
    """How long what runs may go on at shutdown: never longer than the pod's `terminationGracePeriodSeconds` allows."""
    return timedelta(seconds=given.grace)
