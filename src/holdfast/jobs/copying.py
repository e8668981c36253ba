"""Insert many jobs with COPY, the fastest way. Called by: enqueue.py.

Only for jobs that need no query before the insert. They may have locks for which they wait: the claim checks those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from holdfast.database.statements import Statement, Steps
from holdfast.jobs.model import LOCKS, AllNew, Enqueued, NewJob
from holdfast.telemetry.trace import carrier

# Ids are usually consecutive; each is returned only if another session took some in between.
RESERVE_IDS = """
    SELECT min(id), CASE WHEN max(id) - min(id) >= %(count)s THEN array_agg(id) END
    FROM (SELECT nextval('holdfast.jobs_id_seq') AS id FROM generate_series(1, %(count)s)) AS drawn
"""
# As a number, because the text format of a timestamp depends on the settings of the caller's connection.
READ_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
COPY_JOBS = """
    COPY holdfast.jobs (id, kind, queue, priority, payload, kind_version, max_attempts, max_crashes, max_runtime,
        run_after, pipeline_id, parent_id, step, ties, trace) FROM STDIN
"""
COPY_WANTS = "COPY holdfast.lock_wants (job_id, key, most, when_busy, priority) FROM STDIN"


def copy(jobs: Sequence[NewJob], payloads: Iterable[str]) -> Steps[Sequence[Enqueued]]:
    """Insert these jobs in the given order."""
    ids = yield from reserve_ids(len(jobs))
    # Delays count from the database's clock, not from the clock of this process.
    now = EPOCH + timedelta(microseconds=(yield Statement(READ_CLOCK))[0][0])
    yield Statement(COPY_JOBS, copy=_job_chunks(ids, jobs, payloads, now, carrier()))
    if any(job.locks for job in jobs):
        yield Statement(COPY_WANTS, copy=_want_chunks(ids, jobs))
    return AllNew(ids)


def reserve_ids(count: int) -> Steps[Sequence[int]]:
    """Reserve `count` ids for new jobs, in ascending order."""
    first, drawn = (yield Statement(RESERVE_IDS, {"count": count}))[0]
    return drawn or range(first, first + count)


CHUNK = 500
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def _job_chunks(
    ids: Sequence[int], jobs: Sequence[NewJob], payloads: Iterable[str], now: datetime, trace: str | None
) -> Iterator[str]:
    like, head, tail = None, "", ""
    came_from = "\\N" if trace is None else _escaped(trace)
    rows = zip(ids, jobs, payloads, strict=True)
    while part := list(islice(rows, CHUNK)):
        lines = []
        for job_id, job, payload in part:
            if job is not like:  # in a bulk of one kind it is always the same object
                like, tail = job, f"{_tail(job, now)}\t{came_from}"
                head = f"{_escaped(job.kind)}\t{_escaped(job.queue)}\t{job.priority}"
            lines.append(f"{job_id}\t{head}\t{_escaped(payload)}\t{tail}\n")
        yield "".join(lines)


def _tail(job: NewJob, now: datetime) -> str:
    counts = f"{job.kind_version}\t{job.max_attempts}\t{job.max_crashes}"
    ties = LOCKS if job.locks else 0
    if job.max_runtime is None and job.run_after is None and job.pipeline_id is None and job.parent_id is None:
        return f"{counts}\t\\N\t\\N\t\\N\t\\N\t\\N\t{ties}"
    due = now + job.run_after if isinstance(job.run_after, timedelta) else job.run_after
    optional = (
        None if job.max_runtime is None else f"{job.max_runtime // MICROSECOND} microseconds",
        None if due is None or due <= now else due.isoformat(),
        job.pipeline_id,
        job.parent_id,
        None if job.step is None or job.parent_id is None else _escaped(job.step),
    )
    rest = "\t".join(["\\N" if value is None else str(value) for value in optional])
    return f"{counts}\t{rest}\t{ties}"


def _want_chunks(ids: Sequence[int], jobs: Sequence[NewJob]) -> Iterator[str]:
    wants = ((job_id, job.priority, lock) for job_id, job in zip(ids, jobs, strict=True) for lock in job.locks)
    while part := list(islice(wants, CHUNK)):
        lines = []
        for job_id, priority, lock in part:
            most = "\\N" if lock.most is None else lock.most
            lines.append(f"{job_id}\t{_escaped(lock.key)}\t{most}\t{lock.when_busy}\t{priority}\n")
        yield "".join(lines)


def _escaped(text: str) -> str:
    if "\\" not in text and "\t" not in text and "\n" not in text and "\r" not in text:
        return text
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
