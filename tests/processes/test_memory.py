"""A memory limit applies to the process of a job, is named in the error, and does not affect other jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import isolated_kinds as kinds
import pytest

from factories import column
from holdfast import Worker, WorkerOptions
from holdfast import job as kind
from holdfast.apps.worker import executor_config
from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue
from holdfast.settings import Settings
from workers import beside, ended

pytestmark = pytest.mark.processes

OURS = [
    kinds.takes_memory,
    kinds.takes_memory_unlimited,
    kinds.asks_duckdb,
    kinds.aborts_without_memory,
    kinds.where,
]
QUICK = WorkerOptions(concurrency=4, beat=timedelta(milliseconds=200), lease=timedelta(seconds=60), grace=timedelta(seconds=5))
NEEDED = "MemoryExceeded: it needed more than max_memory=256MiB; raise max_memory, or process less at a time"


@pytest.mark.more
async def test_job_beyond_its_memory_limit_fails_with_that_cause(database: str, conn: Any) -> None:
    """B-04: enforced on the process of the job; what fits runs, and the others go on."""
    fits = await enqueue(conn, kinds.takes_memory.new(mebibytes=50))
    greedy = await enqueue(conn, kinds.takes_memory.new(mebibytes=1000))
    beside_it = await enqueue(conn, kinds.where.new())

    async with beside(Worker(database, OURS, QUICK)):
        small, big, other = [await ended(conn, made.id) for made in (fits, greedy, beside_it)]

    assert (small.state, small.result) == ("completed", 50 * 2**20)
    assert (big.state, big.cause, big.crashes) == ("failed", "oom", 0)
    assert big.error is not None
    assert big.error.endswith(NEEDED)
    assert (other.state, other.crashes) == ("completed", 0)


@pytest.mark.more
async def test_limit_applies_to_native_code(database: str, conn: Any) -> None:
    """B-04: DuckDB's allocations count, and its error is understood."""
    pytest.importorskip("duckdb")
    fits = await enqueue(conn, kinds.asks_duckdb.new(rows=1000))
    greedy = await enqueue(conn, kinds.asks_duckdb.new(rows=30_000_000))

    async with beside(Worker(database, OURS, QUICK)):
        small, big = await ended(conn, fits.id), await ended(conn, greedy.id)

    assert (small.state, small.result) == ("completed", 1000)
    assert (big.state, big.cause) == ("failed", "oom")
    assert big.error is not None
    assert big.error.endswith(NEEDED)


@pytest.mark.more
async def test_crash_from_the_limit_names_it(database: str, conn: Any) -> None:
    made = await enqueue(conn, kinds.aborts_without_memory.new())

    async with beside(Worker(database, OURS, QUICK)) as worker:
        dead = await ended(conn, made.id)
        assert not worker.is_stopping

    assert (dead.state, dead.cause, dead.crashes) == ("failed", "SIGABRT", 1)
    assert dead.error == "its process was killed by SIGABRT; its memory was limited by max_memory=256MiB"


@pytest.mark.more
async def test_worker_limit_applies_to_kinds_without_one(database: str, conn: Any) -> None:
    """B-04: for a class of workers, by HOLDFAST_JOB_MAX_MEMORY."""
    limited = replace(
        QUICK, max_memory=WorkerOptions.from_settings(Settings(job_max_memory="256MiB"), runner="worker").max_memory
    )
    made = await enqueue(conn, kinds.takes_memory_unlimited.new(mebibytes=1000))

    async with beside(Worker(database, OURS, limited)):
        big = await ended(conn, made.id)

    assert (big.state, big.cause) == ("failed", "oom")
    assert executor_config(Settings(job_max_memory="2GiB"), "postgresql:///none", ["m"]).options.max_memory == 2 * 2**30


@pytest.mark.more
async def test_limit_of_one_job_does_not_apply_to_the_next(database: str, conn: Any) -> None:
    first = await enqueue(conn, kinds.takes_memory.new(mebibytes=1))

    async with beside(Worker(database, OURS, replace(QUICK, concurrency=1))):
        await ended(conn, first.id)
        second = await enqueue(conn, kinds.takes_memory_unlimited.new(mebibytes=400))
        big = await ended(conn, second.id)

    assert (big.state, big.result) == ("completed", 400 * 2**20)
    assert await column(conn, first.id, "state") == "completed"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"max_memory": "512MiB"}, "add run_in='process'"),
        ({"max_memory": "512MiB", "run_in": "thread"}, "add run_in='process'"),
        ({"max_memory": "much", "run_in": "process"}, "or text like '512MiB'"),
        ({"max_memory": "-1MiB", "run_in": "process"}, "or text like '512MiB'"),
        ({"max_memory": 1.5, "run_in": "process"}, "a number of bytes"),
        ({"max_memory": "10MiB", "run_in": "process"}, "at least 64MiB"),
        ({"max_memory": 0, "run_in": "process"}, "at least 64MiB"),
    ],
)
def test_invalid_limit_is_refused_at_declaration(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kind("isolated.refused", **policy)


def test_invalid_setting_is_refused_at_start() -> None:
    with pytest.raises(UsageError, match="HOLDFAST_JOB_MAX_MEMORY"):
        WorkerOptions.from_settings(Settings(job_max_memory="lots"), runner="worker")
