"""What a schedule uses: connections, workers, names, and the log. Called by: `play.py` and its actors.

One `Stage` for each process (a database and its connections, kept for thousands of schedules) and one `World` for each
schedule (a seed, new workers, a new log). Jobs of earlier schedules have all ended and stay in the tables; a schedule
reads only rows above its own `base`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from proof.actors.lanes import Clock, SteppedLanes
from proof.checker.witness import Witness
from proof.schedules.stepper import SteppedConnection

from holdfast.jobs import enqueue
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.jobs.renew import WorkerInfo, register

KINDS = ("proof.a", "proof.b", "proof.c")
QUEUES = ("default", "other")
LEASE = timedelta(hours=1)  # far beyond any schedule: a lease ends when the seed says so
WORKERS = 3
USUAL = (0.02, 0.02, 2.0)  # seconds that jobs take: short ones are held ahead, long ones are not
STEPS = (0.002, 0.02, 0.3)
HOLDS_AHEAD, MANY = 0.4, 14

# Plans that a small table never gets, on one worker of each process: a statement that is right only for the plan
# that the planner likes today is caught here.
HOSTILE_PLANS = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_sort = off"
# As the product's own connections plan (database/pool.py), and quick about what nobody will miss.
QUICK = """
    SET plan_cache_mode = force_generic_plan; SET synchronous_commit = off; SET deadlock_timeout = '30ms'; SET jit = off
"""

PROOF_TABLES = """
    CREATE SCHEMA IF NOT EXISTS proof;
    CREATE TABLE IF NOT EXISTS proof.published (job_id bigint NOT NULL, attempt_id uuid NOT NULL);
"""
CLEAR = """
    TRUNCATE holdfast.jobs, holdfast.history, holdfast.workers, holdfast.controls, holdfast.pipelines, holdfast.dependencies,
             holdfast.lock_keys, holdfast.lock_wants, holdfast.lock_holders, holdfast.effects, proof.published
"""
START = """
    DELETE FROM holdfast.workers;
    DELETE FROM holdfast.controls;
"""
READ_LEASE = "SELECT beat_at, lease_until, xmin::text::bigint FROM holdfast.workers WHERE id = %s"
BASE = "SELECT coalesce(max(id), 0) FROM holdfast.jobs"
COPY_FROM = 4  # so that small schedules go through COPY as well

Work = Coroutine[Any, Any, None]


class Rehearsed(Exception):
    """A failure that a schedule causes on purpose, inside somebody's transaction."""


@dataclass(slots=True, eq=False)
class Worker:
    """One process that runs jobs: what it believes to hold, and what it once held."""

    number: int
    conn: SteppedConnection
    id: WorkerId
    lanes: SteppedLanes
    held: list[Claim] = field(default_factory=list)  # what runs; what waits for a lane is in `lanes`
    past: list[Claim] = field(default_factory=list)  # ended or lost: whatever is written under them must be refused
    strays: list[Claim] = field(default_factory=list)  # claimed in its name, and the answer never came

    def let_go(self, claim: Claim) -> None:
        """The attempt is over, one way or the other; it stays around as a ghost that tries to write."""
        self.held = [held for held in self.held if held.attempt_id != claim.attempt_id] + self.lanes.end(claim)
        self.past = [*self.past[-5:], claim]


@dataclass(slots=True)
class Stage:
    """A database and the connections of every actor, for as many schedules as a process plays."""

    url: str
    workers: list[SteppedConnection]
    enqueuer: SteppedConnection
    client: SteppedConnection  # a second enqueuer
    operator: SteppedConnection
    sweeper: SteppedConnection
    watcher: SteppedConnection
    played: int = 0

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> Stage:
        """Connect every actor; the connections close with `stack`."""
        enqueue.WORTH_A_COPY = COPY_FROM

        async def connect(settings: str) -> SteppedConnection:
            conn = await SteppedConnection.connect(url, autocommit=True)
            stack.push_async_callback(conn.close)
            await conn.execute(settings)
            conn.prepare_threshold, conn.prepared_max = 1, 500
            return conn

        workers = [await connect(QUICK) for _ in range(WORKERS)]
        await workers[-1].execute(HOSTILE_PLANS)
        others = [await connect(QUICK) for _ in range(5)]
        await others[-1].execute(PROOF_TABLES)
        return cls(url, workers, *others)

    async def clear(self) -> None:
        """Sweep away the sediment, so that row ten million is as quick as row ten."""
        await self.watcher.execute(CLEAR)


@dataclass(slots=True)
class World:
    """Everything about one schedule."""

    stage: Stage
    seed: int
    rng: random.Random
    witness: Witness
    theme: str
    base: int
    workers: list[Worker]
    clock: Clock
    usual: dict[str, float]  # how long jobs of each kind took before the schedule, in seconds
    step: float  # seconds that pass with every act, for the lanes
    holds_ahead: bool  # whether there are many jobs, and workers mostly claim for their lanes
    jobs: list[JobId] = field(default_factory=list)
    pipelines: list[str] = field(default_factory=list)
    effects: dict[str, list[Effect]] = field(default_factory=dict)  # by attempt: what it planned
    outside: set[str] = field(default_factory=set)  # what the handlers made and no cleaner has removed
    focus: JobId | None = None  # the job that the acts of an overlap prefer to meet at
    alone: bool = True  # whether the act under way is the only one
    tokens: int = 0
    crowd: int = 8  # jobs, about: few have many attempts each, many meet each other more

    @classmethod
    async def begin(cls, stage: Stage, seed: int, theme: str, rng: random.Random) -> World:
        """Fresh workers on the stage, and an empty log."""
        await stage.watcher.execute(START)
        row = await (await stage.watcher.execute(BASE)).fetchone()
        assert row is not None
        holds_ahead = rng.random() < HOLDS_AHEAD
        crowd, step = MANY if holds_ahead else rng.choice((2, 4, 6, 10)), rng.choice(STEPS)
        usual = {kind: rng.choice(USUAL) for kind in KINDS}
        world = cls(stage, seed, rng, Witness(), theme, row[0], [], Clock(), usual, step, holds_ahead, crowd=crowd)
        stage.played += 1
        for number, conn in enumerate(stage.workers):
            world.workers.append(Worker(number, conn, WorkerId(""), world.new_lanes(WorkerId(""))))
            await world.incarnate(world.workers[-1])
        return world

    def new_lanes(self, worker_id: WorkerId) -> SteppedLanes:
        """Empty lanes of a worker that has run jobs of every kind before."""
        return SteppedLanes(self.witness, self.clock, worker_id, queues=QUEUES, usual=self.usual)

    async def incarnate(self, worker: Worker) -> None:
        """A new start of the process: a new id, and no memory."""
        worker.id = WorkerId(str(uuid.UUID(int=self.rng.getrandbits(128))))
        worker.held, worker.past, worker.strays, worker.lanes = [], [], [], self.new_lanes(worker.id)
        begun = self.witness.tick()
        await register(worker.conn, WorkerInfo(worker.id, f"worker-{worker.number}", "here", 1, "1"), lease=LEASE)
        self.witness.note("register", begun, worker=worker.id)

    def name(self, word: str) -> str:
        """A key that no other schedule of this stage uses."""
        return f"{self.stage.played}-{word}"

    def token(self) -> int:
        """What stands in a payload, so that a job can be told from every other."""
        self.tokens += 1
        return self.tokens

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def some_job(self) -> JobId | None:
        """Any job that was acknowledged; the newer ones more often, since the older have mostly ended."""
        if self.focus is not None and self.chance(0.7):
            return self.focus
        if not self.jobs:
            return None
        recent = self.jobs[-6:] if self.chance(0.7) else self.jobs
        return self.rng.choice(recent)

    def some_held(self, worker: Worker) -> Claim | None:
        """A claim that the worker believes in."""
        if not worker.held:
            return None
        focused = [claim for claim in worker.held if claim.id == self.focus]
        return focused[0] if focused and self.chance(0.8) else self.rng.choice(worker.held)

    def learn(self, job_id: JobId) -> None:
        """A job was acknowledged to somebody."""
        if job_id not in self.jobs:
            self.jobs.append(job_id)
