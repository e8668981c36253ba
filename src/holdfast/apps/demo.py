"""The demo: a pipeline whose workers are killed and stopped on purpose, and whose result is still correct.

Called by: `holdfast up`. Three worker processes add up a ledger. One is killed with SIGKILL in the middle of a part. Another
is stopped until its lease has ended and its job has a new attempt; when it continues, its write is refused. The total is
correct, and every part was published by exactly one attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.apps import demo_jobs
from holdfast.database.launch import die_with
from holdfast.database.pool import connect
from holdfast.jobs.model import JobId
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.views.history import history
from holdfast.jobs.views.read import JobView, list_jobs
from holdfast.telemetry.log import configure
from holdfast.worker.options import WorkerOptions
from holdfast.worker.without_keeper import work

WORKERS = 3
LEASE = 3.0
BEAT = 0.7
LONGEST = 240.0
COLOUR = {"completed": "green", "running": "cyan", "pending": "yellow", "blocked": "dim", "failed": "red", "cancelled": "red"}
EXPECTED = sum(p * r for p in range(1, demo_jobs.PARTS + 1) for r in range(1, demo_jobs.ROWS_PER_PART + 1))


@dataclass(slots=True)
class Story:
    """What has happened so far, for the display and the summary."""

    started: float = field(default_factory=time.monotonic)
    lines: deque[Text] = field(default_factory=lambda: deque(maxlen=14))
    workers: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # worker id → name
    killed_at: float | None = None
    recovered_after: float | None = None
    refused: int = 0

    def tell(self, text: str, style: str = "") -> None:
        self.lines.append(Text(f"{time.monotonic() - self.started:5.1f} s  {text}", style=style))


@dataclass(slots=True)
class WorkerProcess:
    """One worker process of the demo."""

    name: str
    process: asyncio.subprocess.Process

    def signal(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)


async def play(url: str, console: Console) -> bool:
    """Run the demo on this database; whether its result is correct."""
    story = Story()
    conn = await connect(url)
    workers: list[WorkerProcess] = []
    try:
        pipeline, ids = await _enqueue(conn)
        story.tell(f"pipeline enqueued: load, {demo_jobs.PARTS} parts, total", "bold")
        for number in range(1, WORKERS + 1):  # one by one: a Ctrl-C in between must find those that were started
            workers.append(await _start_worker(url, f"worker-{number}", story))
        ending = asyncio.create_task(_inject_faults(conn, ids, workers, story))
        with Live(console=console, refresh_per_second=12, transient=False, auto_refresh=console.is_terminal) as live:
            await _watch(conn, pipeline, story, live)
        await ending
        return await _conclude(conn, pipeline, story, console)
    finally:
        await _stop(workers)
        await conn.close()


async def _enqueue(conn: psycopg.AsyncConnection[Any]) -> tuple[Pipeline, list[JobId]]:
    pipeline = Pipeline("demo ledger")
    load = pipeline.add(demo_jobs.load.new())
    parts = [pipeline.add(demo_jobs.part.new(number=n), after=load) for n in range(1, demo_jobs.PARTS + 1)]
    pipeline.add(demo_jobs.total.new(), after=parts)
    return pipeline, [made.id for made in await pipeline.enqueue(conn)]


async def _start_worker(url: str, name: str, story: Story) -> WorkerProcess:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast.apps.demo", str(os.getpid()), url, name,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches us alone; we end the workers
    )  # fmt: skip
    story.workers[name] = "starting"
    asyncio.create_task(_read_log(process, name, story))  # noqa: RUF006 - ends with the process's output
    return WorkerProcess(name, process)


async def _read_log(process: asyncio.subprocess.Process, name: str, story: Story) -> None:
    """Show what a worker logs: its start, rescues, and above all refused writes."""
    assert process.stderr is not None
    async for raw in process.stderr:
        try:
            said = json.loads(raw)
        except ValueError:
            continue
        event = said.get("event")
        if event == "worker_started":
            story.workers[name] = "alive"
            story.names[said["worker_id"]] = name
        elif event == "jobs_rescued":
            story.tell(f"{name} rescued job {', '.join(map(str, said['jobs']))} from a lost worker", "bold yellow")
        elif event == "writeback_stale_attempt":
            story.refused += 1
            story.tell(f"{name} continued and tried to {said['operation']} job {said['job_id']}: REFUSED", "bold magenta")


async def _inject_faults(
    conn: psycopg.AsyncConnection[Any], ids: list[JobId], workers: list[WorkerProcess], story: Story
) -> None:
    """Kill one worker in the middle of a part; stop another just before it publishes, until it has been replaced."""
    parts = ids[1:-1]
    victim, job = await _worker_at(conn, parts, workers, story, 0.3)
    victim.signal(signal.SIGKILL)
    story.workers[victim.name] = "killed"
    story.tell(f"SIGKILL to {victim.name} in the middle of job {job}", "bold red")
    killed_at = time.monotonic()

    others = [worker for worker in workers if worker is not victim]
    stopped, stalled = await _worker_at(conn, [i for i in parts if i != job], others, story, 0.9)
    stopped.signal(signal.SIGSTOP)
    story.workers[stopped.name] = "stopped"
    story.tell(f"SIGSTOP to {stopped.name} just before it publishes job {stalled}", "bold red")

    await _until_attempt(conn, job, 2)
    story.recovered_after = time.monotonic() - killed_at
    story.tell(f"job {job} runs again, {story.recovered_after:.1f} s after its worker was killed", "bold green")
    await _until_attempt(conn, stalled, 2)
    story.tell(f"job {stalled} has a new attempt; SIGCONT to {stopped.name}", "bold yellow")
    stopped.signal(signal.SIGCONT)
    story.workers[stopped.name] = "alive"
    await _until(lambda: _refused(story))


async def _refused(story: Story) -> bool:
    return story.refused > 0


async def _worker_at(
    conn: psycopg.AsyncConnection[Any], jobs: list[JobId], workers: list[WorkerProcess], story: Story, progress: float
) -> tuple[WorkerProcess, JobId]:
    """A worker that is at least this far into one of the jobs."""
    while True:
        cursor = await conn.execute(
            "SELECT id, worker_id::text FROM holdfast.jobs WHERE id = ANY(%s) AND state = 'running' AND progress >= %s",
            [jobs, progress],
        )
        for job_id, worker_id in await cursor.fetchall():
            for worker in workers:
                if story.names.get(worker_id) == worker.name and worker.process.returncode is None:
                    return worker, job_id
        await asyncio.sleep(0.02)


async def _until_attempt(conn: psycopg.AsyncConnection[Any], job_id: JobId, number: int) -> None:
    async def reached() -> bool:
        cursor = await conn.execute("SELECT attempt_no >= %s FROM holdfast.jobs WHERE id = %s", [number, job_id])
        row = await cursor.fetchone()
        return bool(row and row[0])

    await _until(reached)


async def _until(reached: Any) -> None:
    async with asyncio.timeout(LONGEST):
        while not await reached():
            await asyncio.sleep(0.03)


async def _watch(conn: psycopg.AsyncConnection[Any], pipeline: Pipeline, story: Story, live: Live) -> None:
    """Show the pipeline until all of its jobs have ended and the write of the stopped worker was refused."""
    async with asyncio.timeout(LONGEST):
        while True:
            jobs = sorted((await list_jobs(conn, pipeline_id=pipeline.id)).jobs, key=lambda job: job.id)
            live.update(_view(jobs, story))
            if all(job.finished_at is not None for job in jobs) and story.refused:
                return
            await asyncio.sleep(0.08)


def _view(jobs: list[JobView], story: Story) -> Group:
    table = Table(expand=False, pad_edge=False, box=None, header_style="dim")
    for column in ("job", "kind", "state", "attempt", "worker", "progress", ""):
        table.add_column(column)
    for job in jobs:
        bar = ProgressBar(total=1, completed=1.0 if job.state == "completed" else job.progress or 0.0, width=20)
        note = "waits for " + job.waiting_for if job.waiting_for else (f"crashed: {job.crashes}" if job.crashes else "")
        worker = story.names.get(job.worker_id or "", "")
        state = Text(job.state, style=COLOUR.get(job.state, ""))
        table.add_row(str(job.id), job.kind, state, str(job.attempt_no or ""), worker, bar, Text(note, style="yellow"))
    workers = "   ".join(f"{name}: {state}" for name, state in story.workers.items())
    log = Text("\n").join(story.lines)
    return Group(Panel(table, title="demo pipeline", title_align="left"), Text(workers, style="dim"), log)


async def _conclude(conn: psycopg.AsyncConnection[Any], pipeline: Pipeline, story: Story, console: Console) -> bool:
    jobs = sorted((await list_jobs(conn, pipeline_id=pipeline.id)).jobs, key=lambda job: job.id)
    told = [entry for job in jobs for entry in await history(conn, JobId(job.id))]
    cursor = await conn.execute(demo_jobs.PUBLISHED, [pipeline.id])
    published, by_attempts = await cursor.fetchone() or (0, 0)
    end = End(
        total=(jobs[-1].result or {}).get("total"),
        parts=published,
        publishers=by_attempts,
        jobs=len(jobs),
        attempts=sum(entry.attempt_id is not None for entry in told),
        refused=story.refused,
        recovered_after=story.recovered_after,
    )
    for statement in demo_jobs.REMOVE:
        await conn.execute(statement, [pipeline.id])
    console.print("\n".join(["", *end.lines()]))
    return end.is_right


@dataclass(frozen=True, slots=True)
class End:
    """The result, as read from the database. Pure: whether it is correct, and the summary."""

    total: Any
    parts: int
    publishers: int
    jobs: int
    attempts: int
    refused: int
    recovered_after: float | None

    @property
    def is_once(self) -> bool:
        return self.parts == self.publishers == demo_jobs.PARTS

    @property
    def is_right(self) -> bool:
        return self.total == EXPECTED and self.is_once

    def lines(self) -> list[str]:
        total = f"{self.total:,}" if isinstance(self.total, int) else "none"
        mark = "[bold green]correct[/]" if self.is_right else "[bold red]WRONG[/]"
        again = "its job never ran again" if self.recovered_after is None else f"its job ran again {self.recovered_after:.1f} s"
        once = f"each of {self.parts} parts was published exactly once"
        not_once = f"{self.parts} of {demo_jobs.PARTS} parts were published, by {self.publishers} attempts"
        return [
            f"  total {total} of {EXPECTED:,} expected: {mark}",
            f"  {self.jobs} jobs, {self.attempts} attempts; {once if self.is_once else not_once}",
            f"  {self.refused} stale write(s) refused; {again} after SIGKILL",
            f"  [dim](the demo's lease is {LEASE:.0f} s; the default is 30 s)[/]",
        ]


async def _stop(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGTERM)
    for worker in workers:
        try:
            await asyncio.wait_for(worker.process.wait(), 5)
        except TimeoutError:
            worker.signal(signal.SIGKILL)
            await worker.process.wait()


def _work(owner: str, url: str, name: str) -> None:
    """A worker process of the demo: ends when the process that started it ends."""
    die_with(int(owner), signal.SIGKILL)
    configure(json=True)
    beat, lease, grace = timedelta(seconds=BEAT), timedelta(seconds=LEASE), timedelta(seconds=1)
    work(url, demo_jobs.KINDS, WorkerOptions(concurrency=1, beat=beat, lease=lease, grace=grace, name=name))


if __name__ == "__main__":
    _work(*sys.argv[1:4])
