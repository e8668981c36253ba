"""Tools to test handlers: run a job in the test process, move the time, and crash the job at chosen points.

    async with harness(url, [render]) as h:
        done = await h.run(render.new(invoice_id=7))       # enqueue, claim, run and finish, in this process
        assert done.state == "completed"

        await h.move_time(timedelta(hours=1))              # what was due in an hour is due now
        await h.drain()                                    # until nothing is left to do

        report = await h.prove_safe(lambda: render.new(invoice_id=8), points=["charged", "run.after"])

Everything runs on a real Postgres; `postgres()` starts one for you.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psycopg

from holdfast import crashpoints
from holdfast.crashpoints import crashpoint
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.database.pool import connect
from holdfast.database.revision import current, wanted
from holdfast.errors import ClaimLost, UnknownKind, UsageError
from holdfast.extras import loaded
from holdfast.jobs import effects, given, promote
from holdfast.jobs.claim import claim
from holdfast.jobs.client import Client
from holdfast.jobs.client import connect as connect_client
from holdfast.jobs.current import made_current
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import finish
from holdfast.jobs.kinds import publish
from holdfast.jobs.model import Claim, Enqueued, JobId, NewJob, WorkerId, refuse_no_job
from holdfast.jobs.outcome import decide
from holdfast.jobs.poll import claim_to_poll, fail_overdue
from holdfast.jobs.renew import WorkerInfo, register
from holdfast.jobs.rescue import rescue, rescue_worker
from holdfast.jobs.views.read import JobView, get_job
from holdfast.testing.loops import LoopDidNotSucceed, wait_for_success
from holdfast.worker.attempt import run_handler
from holdfast.worker.context import Context, Lease
from holdfast.worker.kinds import Job, cleaners, registered
from holdfast.worker.transports.direct import OnConnections

__all__ = [
    "Crash",
    "Harness",
    "LoopDidNotSucceed",
    "SafetyReport",
    "crash_at",
    "crashpoint",
    "harness",
    "postgres",
    "wait_for_success",
]

LEASE = timedelta(hours=1)
MOST_STEPS = 10_000

MOVE_TIME = """
    WITH jobs AS (
        UPDATE holdfast.jobs SET run_after = run_after - %(by)s, next_poll_at = next_poll_at - %(by)s,
            deadline_at = deadline_at - %(by)s, submitted_at = submitted_at - %(by)s
        WHERE run_after IS NOT NULL OR next_poll_at IS NOT NULL OR deadline_at IS NOT NULL
    ), periodic AS (
        UPDATE holdfast.periodic_jobs SET next_due_at = next_due_at - %(by)s
    ), effects AS (
        UPDATE holdfast.effects SET clean_after = clean_after - %(by)s WHERE clean_after IS NOT NULL
    )
    UPDATE holdfast.workers SET lease_until = lease_until - %(by)s WHERE id <> %(me)s
"""


class Crash(BaseException):
    """Simulates that the process was killed here. Not an `Exception`, because a handler cannot catch a SIGKILL either."""

    def __init__(self, point: str) -> None:
        super().__init__(f"crashed at {point}")
        self.point = point


@contextmanager
def crash_at(point: str, *, times: int = 1, must_reach: bool = True) -> Iterator[list[str]]:
    """Crash at this crash point, `times` times. The list has one item for each time that it was reached.

    If the point is not reached in the block, the test proves nothing, so that is an error unless `must_reach` is false.
    """
    _refuse_unknown(point)
    hits: list[str] = []

    def die() -> None:
        if len(hits) < times:
            hits.append(point)
            raise Crash(point)

    crashpoints.arm(point, die)
    try:
        yield hits
    finally:
        crashpoints.disarm(point)
    if must_reach and not hits:
        raise UsageError(f"crash point {point!r} was never reached; check that the handler calls it, or use must_reach=False")


def _refuse_unknown(point: str) -> None:
    """Refuse a misspelt name of a built-in point. Any other name may be a point that a handler calls."""
    given.a_key("point", point)
    word, dot, _ = point.partition(".")
    ours = [name for name in crashpoints.POINTS if name.startswith(f"{word}.")]
    if dot and ours and point not in ours:
        raise given.wrong("point", point, f"must be one of {', '.join(ours)}; use another prefix for your own points")


@dataclass(slots=True)
class SafetyReport:
    """How a job ended, by the point at which it was crashed."""

    ended: dict[str, JobView] = field(default_factory=dict)
    never_reached: list[str] = field(default_factory=list)

    @property
    def is_safe(self) -> bool:
        """Whether it completed after a crash at each point, and every point was reached."""
        return not self.never_reached and all(job.state == "completed" for job in self.ended.values())


class Harness:
    """A worker without a loop, controlled by the test."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], kinds: Iterable[Job[..., Any]], client: Client) -> None:
        self.conn, self._client = conn, client
        self.worker_id = WorkerId(str(uuid4()))
        self._kinds = {kind.kind: kind for kind in kinds}

    async def run(self, job: NewJob) -> JobView:
        """Enqueue a job, run it and all jobs that follow from it, and return the job."""
        made = await self._enqueue(job)
        await self.drain()
        return await get_job(self.conn, made.id)

    async def drain(self) -> list[JobId]:
        """Run all jobs that can run now, until none is left. Returns them in the order in which they ran.

        Jobs of workers whose lease has expired are rescued and run too.
        """
        ran: list[JobId] = []
        died: Crash | None = None
        for _ in range(MOST_STEPS):
            try:
                if died is not None:
                    await rescue_worker(self.conn, self.worker_id, cause="crash", error=str(died), actor="harness")
                    died = None
                one = await self._next()
                if one is None:
                    return ran
                ran.append(one.id)
                await self._attempt(one)
            except Crash as crash:  # at any step: claim, run, finish or rescue
                died = crash
        raise UsageError(f"there is still work after {MOST_STEPS:,} attempts; check whether a job enqueues itself")

    async def clean(self) -> int:
        """Call the registered cleaners for all unwanted effects."""
        return await effects.clean(self.conn, cleaners())

    async def move_time(self, by: timedelta) -> None:
        """Simulate that this much time passes: for delays, periodic jobs, polls, deadlines, leases and clean-ups."""
        given.a_span("by", by)
        await self.conn.execute(MOVE_TIME, {"by": by, "me": self.worker_id})

    async def prove_safe(self, make: Callable[[], NewJob], points: Sequence[str]) -> SafetyReport:
        """Crash a new job at each of these points, rescue it, run it again, and report how it ends."""
        given.a_function("make", make, "lambda: render.new(invoice_id=7)")
        points = given.listed("points", points, "'run.after'")
        report = SafetyReport()
        for point in points:
            made = await self._enqueue(make())
            with crash_at(point, must_reach=False) as hits:
                await self.drain()
                await self.move_time(timedelta(hours=1))
                await self.drain()
            if not hits:
                report.never_reached.append(point)
            report.ended[point] = await get_job(self.conn, made.id)
        return report

    async def register(self) -> None:
        host = socket.gethostname()
        await publish(self.conn, [kind.published for kind in self._kinds.values()], worker="harness")
        await register(self.conn, WorkerInfo(self.worker_id, "harness", host, 0, "test"), lease=LEASE)

    async def _enqueue(self, job: NewJob) -> Enqueued:
        refuse_no_job(job)
        if job.kind not in self._kinds:
            raise UnknownKind(job.kind, list(self._kinds))
        return await enqueue(self.conn, job)

    async def _next(self) -> Claim | None:
        await promote.promote_all_due(self.conn)
        await fail_overdue(self.conn, self.worker_id)
        await rescue(self.conn)
        kinds = list(self._kinds)
        crashpoint("claim.before")
        found = await claim(self.conn, self.worker_id, kinds=kinds, queues=await self._queues(), limit=1)
        found = found or await claim_to_poll(self.conn, self.worker_id, kinds=kinds, queues=await self._queues(), limit=1)
        if not found:
            return None
        crashpoint("claim.after_commit")
        return found[0]

    async def _queues(self) -> list[str]:
        rows = await (await self.conn.execute("SELECT DISTINCT queue FROM holdfast.jobs")).fetchall()
        return [row[0] for row in rows] or ["default"]

    async def _attempt(self, claim: Claim) -> None:
        try:
            kind = self._kinds[claim.kind]
            with made_current(lambda: self._client):  # as in a worker: a handler enqueues into the database of its job
                end = await run_handler(kind, claim, self._make_context)
            try:
                await finish(self.conn, claim, end)
            except (ClaimLost, psycopg.OperationalError):
                raise
            except Exception as error:  # as in the worker: nothing was committed, so this attempt has failed
                await finish(self.conn, claim, decide(claim, error, kind.policy.retry))
            crashpoint("complete.after_commit_before_ack")
        except ClaimLost:
            return

    def _make_context(self, claim: Claim) -> Context:
        @asynccontextmanager
        async def borrow() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
            yield self.conn

        return Context(claim, OnConnections(borrow), Lease(LEASE.total_seconds()))


@asynccontextmanager
async def harness(url: str, kinds: Iterable[Job[..., Any]] | None = None) -> AsyncIterator[Harness]:
    """A harness on this database, which it migrates; for these kinds, or for all registered kinds."""
    _migrate(url)
    conn = await connect(url)
    try:
        async with connect_client(url, most=2) as client:
            made = Harness(conn, registered().values() if kinds is None else kinds, client)
            await made.register()
            yield made
    finally:
        await conn.close()


@contextmanager
def postgres() -> Iterator[str]:
    """Start a temporary Postgres for the block, migrated and empty, without fsync. Returns its address."""
    quick = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    with (
        TemporaryDirectory(prefix="holdfast-") as folder,
        EmbeddedPostgres(Path(folder), port=0, settings=quick, on_message=lambda _: None) as server,
    ):
        _migrate(server.url)
        yield server.url


def _migrate(url: str) -> None:
    """Migrate, unless the schema is current. Imported on use, because Alembic is an extra."""
    if current(url).revision != wanted():
        loaded("holdfast.database.migrate", extra="embedded").migrate(url)
