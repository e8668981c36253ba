"""For the tests of those who write handlers: run a job here and now, move time, and kill it where it hurts.

    async with harness(url, [render]) as h:
        done = await h.run(render.new(invoice_id=7))       # enqueue, claim, run, finish: all of it, in this process
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
from holdfast.database import migrate
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.database.pool import connect
from holdfast.errors import ClaimLost, UnknownKind, UsageError
from holdfast.jobs import effects, given, promote
from holdfast.jobs.claim import claim
from holdfast.jobs.client import Client, made_current
from holdfast.jobs.client import connect as connect_client
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import finish
from holdfast.jobs.kinds import publish
from holdfast.jobs.model import Claim, Enqueued, JobId, NewJob, WorkerId, refuse_no_job
from holdfast.jobs.outcome import decide
from holdfast.jobs.poll import claim_to_poll, fail_overdue
from holdfast.jobs.read import JobView, get_job
from holdfast.jobs.renew import WorkerInfo, register
from holdfast.jobs.rescue import rescue, rescue_worker
from holdfast.testing.loops import LoopDidNotSucceed, wait_for_success
from holdfast.worker.context import Context, Lease
from holdfast.worker.direct import OnConnections
from holdfast.worker.execute import execute
from holdfast.worker.kinds import Job, cleaners, registered

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
    ), effects AS (
        UPDATE holdfast.effects SET clean_after = clean_after - %(by)s WHERE clean_after IS NOT NULL
    )
    UPDATE holdfast.workers SET lease_until = lease_until - %(by)s WHERE id <> %(me)s
"""


class Crash(BaseException):
    """The process would be gone here. Not an `Exception`: nothing that a handler catches survives a SIGKILL either."""

    def __init__(self, point: str) -> None:
        super().__init__(f"crashed at {point}")
        self.point = point


@contextmanager
def crash_at(point: str, *, times: int = 1, must_reach: bool = True) -> Iterator[list[str]]:
    """Die at this crash point, `times` times; the list says how often it was reached.

    A block that ends without having come there has proved nothing, so that is an error, unless `must_reach` is false.
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
        raise UsageError(
            f"crash point {point!r} was never reached; does the handler come there? If not always: must_reach=False"
        )


def _refuse_unknown(point: str) -> None:
    """A slip in one of Holdfast's own points is seen at once. Any other name may be one that a handler calls."""
    given.a_key("point", point)
    word, dot, _ = point.partition(".")
    ours = [name for name in crashpoints.POINTS if name.startswith(f"{word}.")]
    if dot and ours and point not in ours:
        raise given.wrong("point", point, f"there are {', '.join(ours)}; begin one of your own with another word")


@dataclass(slots=True)
class SafetyReport:
    """How a job ended, by the point at which it was killed."""

    ended: dict[str, JobView] = field(default_factory=dict)
    never_reached: list[str] = field(default_factory=list)

    @property
    def is_safe(self) -> bool:
        """Whether it completed wherever it was killed, and every point was really reached."""
        return not self.never_reached and all(job.state == "completed" for job in self.ended.values())


class Harness:
    """A worker without a loop: it does what you say, when you say it."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], kinds: Iterable[Job[..., Any]], client: Client) -> None:
        self.conn, self._client = conn, client
        self.worker_id = WorkerId(str(uuid4()))
        self._kinds = {kind.kind: kind for kind in kinds}

    async def run(self, job: NewJob) -> JobView:
        """Enqueue a job, run it and whatever it leads to, and give back what became of it."""
        made = await self._enqueue(job)
        await self.drain()
        return await get_job(self.conn, made.id)

    async def drain(self) -> list[JobId]:
        """Run everything that can run now, until nothing is left; the jobs in the order they ran.

        What a worker held whose lease is over is taken from it and run, too.
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
            except Crash as crash:  # wherever it was: while it claimed, ran, finished, or took from others
                died = crash
        raise UsageError(f"{MOST_STEPS:,} attempts and still no end; does a job enqueue itself?")

    async def clean(self) -> int:
        """Call the registered cleaners for everything that is unwanted."""
        return await effects.clean(self.conn, cleaners())

    async def move_time(self, by: timedelta) -> None:
        """Let this much time pass: for delays, polls, deadlines, other workers' leases and clean-ups."""
        given.a_span("by", by)
        await self.conn.execute(MOVE_TIME, {"by": by, "me": self.worker_id})

    async def prove_safe(self, make: Callable[[], NewJob], points: Sequence[str]) -> SafetyReport:
        """Kill a fresh job at each of these points, let it be rescued and run again, and see how it ends."""
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
        await promote.promote_due(self.conn)
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
            with made_current(lambda: self._client):  # as in a worker: a handler enqueues into the database it came from
                end = await execute(kind, claim, self._make_context)
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
    """A harness on this database, which it migrates; for these kinds, or all that are registered."""
    migrate.migrate(url)
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
    """A Postgres of your own for the length of the block, migrated, empty and quick; its address."""
    quick = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    with (
        TemporaryDirectory(prefix="holdfast-") as folder,
        EmbeddedPostgres(Path(folder), port=0, settings=quick, on_message=lambda _: None) as server,
    ):
        migrate.migrate(server.url)
        yield server.url
