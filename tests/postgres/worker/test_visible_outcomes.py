"""What a worker logs about the jobs that it ran: completions at info, failures at error level with their traceback."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Done, Worker, WorkerOptions
from holdfast import job as kind
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.worker import outcome_writer

QUICK = WorkerOptions(concurrency=2, beat=timedelta(milliseconds=200), grace=timedelta(seconds=5))


@kind("visible.plain")
async def plain() -> None: ...


@kind("visible.first")
async def first() -> Done:
    return Done(then=[plain.new()])


@kind("visible.broken", max_attempts=1)
async def broken() -> None:
    raise ValueError("no such invoice")


OURS = [plain, first, broken]


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if f"event='{event}'" in record.getMessage()]


async def drain(database: str) -> None:
    await Worker(database, OURS, QUICK).run(until_empty=True)


async def test_failure_is_logged_as_error_with_traceback(database: str, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = await enqueue(conn, broken.new())

    await drain(database)

    (line,) = lines(caplog, "job_failed")
    assert line.levelno == logging.ERROR
    assert f"job_id={made.id}" in line.getMessage()
    assert "\nTraceback (most recent call last):\n" in line.getMessage()
    assert line.getMessage().endswith("ValueError: no such invoice")


async def test_batched_and_chained_completions_are_logged(database: str, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    made = await enqueue(conn, first.new())

    await drain(database)

    kinds = [line.getMessage().partition("kind=")[2].split("'")[1] for line in lines(caplog, "job_completed")]
    assert kinds == ["visible.first", "visible.plain"]
    assert f"job_id={made.id}" in lines(caplog, "job_completed")[0].getMessage()


async def test_large_batch_is_logged_as_one_line_with_all_ids(
    database: str, conn: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    monkeypatch.setattr(outcome_writer, "MOST_LINES", 0)
    made = [one.id for one in await enqueue_many(conn, [plain.new() for _ in range(20)])]

    await drain(database)

    assert lines(caplog, "job_completed") == []
    shown = "".join(line.getMessage() for line in lines(caplog, "jobs_completed"))
    assert [job_id for job_id in made if str(job_id) not in shown] == []


async def test_completions_are_not_formatted_when_info_is_off(
    database: str, conn: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="holdfast")
    monkeypatch.setattr(outcome_writer, "_fields", None)  # nothing may be made for a line that is not written
    await enqueue(conn, plain.new())

    await drain(database)

    assert lines(caplog, "job_completed") == []


PROGRAM = """
import asyncio, logging, sys
import holdfast

@holdfast.job("visible.broken", max_attempts=1)
async def broken() -> None:
    raise ValueError("no such invoice")

{configure}
asyncio.run(holdfast.Worker(sys.argv[1], [broken]).run(until_empty=True))
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("configure", "tracebacks"), [("", 1), ("logging.basicConfig()", 1), ("logging.getLogger('holdfast').disabled = True", 0)]
)
async def test_a_library_worker_writes_failures_to_standard_error_once(
    database: str, conn: Any, configure: str, tracebacks: int
) -> None:
    await enqueue(conn, broken.new())
    program = [sys.executable, "-c", PROGRAM.format(configure=configure), database]

    done = await asyncio.to_thread(subprocess.run, program, capture_output=True, text=True, check=True)

    assert done.stderr.count("Traceback (most recent call last)") == tracebacks
    assert done.stderr.count("job_failed") == tracebacks
