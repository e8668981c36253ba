"""Real worker processes on a real Postgres, killed, frozen and disconnected by a seed; then both logs are checked.

    python -m proof.processes --schedules 1000
    python -m proof.processes --seed 123           # replay one schedule and print all of it

A seed selects the jobs, the workers with the crash points at which they die, and the faults: each starts when the
witness has a given number of lines. Then the faults stop, a worker without faults completes everything, and `checks.py`
checks. The processes are real, so the same seed gives the same plan but not always the same race: replay a violation
several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from proof.checker.check import Violation
from proof.processes.checks import Account, Acknowledged, check, read_account
from proof.processes.fork_server import FAILED, NO_DATABASE, Forked, ForkServer, until
from proof.processes.handlers import some_job
from proof.processes.modes import MODES, WORKER_POINTS
from proof.processes.postgres import OwnPostgres
from proof.proxy import Proxy

from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob

LEASE = 1.0
MOST_PATIENCE = 60.0  # seconds until everything must have ended; on a quiet machine it takes two
CLEAR = """
    TRUNCATE holdfast.jobs, holdfast.history, holdfast.workers, holdfast.controls, holdfast.pipelines, holdfast.dependencies,
             holdfast.lock_keys, holdfast.lock_wants, holdfast.lock_holders, holdfast.effects,
             holdfast.periodic_jobs, proof.published
"""
LEFT = """
    SELECT (SELECT count(*) FROM holdfast.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled'))
         + (SELECT count(*) FROM holdfast.effects WHERE state = 'unwanted')
"""
WHERE_TO_CUT = ("COMMIT", "UPDATE holdfast.jobs", "UPDATE holdfast.workers", "INSERT INTO holdfast", "FOR UPDATE SKIP LOCKED")
WARM = 0.95  # of the schedules: there, executors and isolated jobs are forked; in the others each is a new interpreter
LANES = (1, 1, 4)
RARE = ("reap.", "submit.", "poll.")
LEADS_TO = {  # which kind of job comes to a point that others never see
    "submit.": "engine",
    "poll.": "engine",
    "publish.": "publish",
    "lock.": "locked",
    "unlock.": "locked",
    "complete.in_tx_after_unlock": "locked",
    "complete.in_tx_after_child": "fan",
}
WEIGHTS = {"worker": 2, "in process": 2, "keeper": 3}
FAULTS = {
    "kill": 6,
    "stop": 6,
    "sigterm": 2,
    "terminate": 4,
    "cut before": 5,
    "cut after": 5,
    "cut all": 2,
    "black hole": 2,
    "delay": 2,
    "restart": 1,
    "kill backend": 1,
    "lose rows": 2,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed says, before anything has happened."""

    seed: int
    jobs: tuple[NewJob, ...]
    later: int  # how many of them are enqueued while the faults go on
    unsure: int  # how many through the proxy, with the connection cut under them
    workers: tuple[tuple[str, bool, str | None, int], ...]  # mode, by way of the proxy, crash point, lanes
    faults: tuple[tuple[int, str], ...]  # after so many lines of the witness
    warm: bool  # whether executors and isolated jobs are forked, or interpreters that import everything

    @classmethod
    def draw(cls, seed: int, modes: tuple[str, ...]) -> Plan:
        rng = random.Random(seed)
        count = rng.randint(4, 14)
        jobs = tuple(replace(some_job(rng, n), idempotency_key=f"{seed}-{n}") for n in range(count))
        workers = []
        for _ in range(rng.randint(1, 3)):
            point = _draw_point(rng) if rng.random() < 0.6 else None
            workers.append(
                (rng.choices(modes, [WEIGHTS.get(mode, 1) for mode in modes])[0], rng.random() < 0.6, point, rng.choice(LANES))
            )
        needed = {
            kind for start, kind in LEADS_TO.items() for _, _, at, _ in workers if at is not None and at.startswith(start)
        }
        jobs += tuple(
            replace(some_job(rng, count + n, kind), idempotency_key=f"{seed}-{count + n}")
            for n, kind in enumerate(sorted(needed))
        )
        kinds = rng.choices(list(FAULTS), list(FAULTS.values()), k=rng.choice((0, 1, 1, 2, 2, 3)))
        faults = sorted((rng.randint(0, count * 2), kind) for kind in kinds)
        later, unsure, warm = rng.randint(0, count // 2), int(rng.random() < 0.2), rng.random() < WARM
        return cls(seed, jobs, later, unsure, tuple(workers), tuple(faults), warm)


def _draw_point(rng: random.Random) -> str:
    """Where a worker dies, and at which time it comes there. Few rescue or submit anything, and fewer twice."""
    point = rng.choices(WORKER_POINTS, [4 if point.startswith(RARE) else 1 for point in WORKER_POINTS])[0]
    return f"{point}:{1 if point.startswith(RARE) else rng.choice((1, 1, 2, 3, 5))}"


@dataclass(slots=True)
class Result:
    """What one schedule came to."""

    plan: Plan
    violations: list[Violation]
    exercised: Counter[str]
    seconds: float
    account: Account
    log: str
    phases: dict[str, float]


# ---------------------------------------------------------------------------------------------------------------------
# The stage: a server, a proxy and a fork server, for as many schedules as there are
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stage:
    """Where schedules are played, one after the other."""

    postgres: OwnPostgres
    proxy: Proxy
    forks: ForkServer
    folder: Path
    modes: tuple[str, ...] = tuple(MODES)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[Stage]:
        with ExitStack() as stack:
            forks = stack.enter_context(ForkServer())
            postgres = stack.enter_context(OwnPostgres(folder / "postgres"))
            proxy = stack.enter_context(Proxy(postgres.url))
            yield cls(postgres, proxy, forks, folder)

    def play(self, seed: int) -> Result:
        """One schedule, from an empty database to the verdict."""
        return Play(self, Plan.draw(seed, self.modes)).play()


class Play:
    """One schedule while it goes on."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.stage, self.plan = stage, plan
        self.rng = random.Random(plan.seed + 1)
        self.folder = stage.folder / f"schedule-{plan.seed}"
        self.workers: list[Forked] = []
        self.frozen: list[tuple[float, Forked]] = []
        self.acknowledged: list[Acknowledged] = []
        self.complaints: list[str] = []
        self.exercised: Counter[str] = Counter()
        self.killed: set[int] = set()
        self.heal_at: float | None = None
        self.waiting = list(plan.jobs)
        self.phases: dict[str, float] = {}
        self._since = time.monotonic()

    # ------------------------------------------------------------------------------------------------- the execution

    def play(self) -> Result:
        began = time.monotonic()
        self._begin()
        self._took("begin")
        for after, fault in self.plan.faults:
            self._wait_for_lines(after)
            self._enqueue(self.rng.randint(0, len(self.waiting)))
            getattr(self, "_" + fault.replace(" ", "_"))()
        self._enqueue(len(self.waiting))
        self._stop_the_faults()
        self._took("faults")
        self._see_it_through()
        self._took("see it through")
        self._end_the_workers()
        self._took("end")
        account = asyncio.run(read_account(self.stage.postgres.url, self.folder, self.acknowledged, self.complaints))
        self._note_what_was_met(account)
        log = self._log()
        shutil.rmtree(self.folder)
        return Result(self.plan, check(account), self.exercised, time.monotonic() - began, account, log, self.phases)

    def _took(self, phase: str) -> None:
        now = time.monotonic()
        self.phases[phase], self._since = round(now - self._since, 2), now

    def _begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        with self._connect() as conn:
            conn.execute(CLEAR)
        self._enqueue(len(self.waiting) - self.plan.later)
        for number, (mode, by_proxy, point, lanes) in enumerate(self.plan.workers):
            url = self.stage.postgres.through(self.stage.proxy.port) if by_proxy else self.stage.postgres.url
            options = {
                "mode": mode,
                "crash_at": point,
                "lease": LEASE,
                "name": f"worker-{number}",
                "concurrency": lanes,
                "warm": self.plan.warm,
            }
            self.workers.append(self.stage.forks.start(url, self.folder, **options))

    def _wait_for_lines(self, count: int) -> None:
        """Until the witness has so many, or nothing more comes because all who could write are dead."""
        deadline = time.monotonic() + LEASE / 2
        while self._lines() < count and time.monotonic() < deadline:
            self._turn()
            time.sleep(0.005)

    def _turn(self) -> None:
        """What was to last for a while only is over."""
        now = time.monotonic()
        for until_then, worker in list(self.frozen):
            if now >= until_then:
                worker.go_on()
                self.frozen.remove((until_then, worker))
        if self.heal_at is not None and now >= self.heal_at:
            self.stage.proxy.heal()
            self.heal_at = None

    def _stop_the_faults(self) -> None:
        while self.frozen or self.heal_at is not None:
            self._turn()
            time.sleep(0.005)
        self.stage.proxy.heal()

    def _see_it_through(self) -> None:
        self._start_an_honest_one()
        with self._connect() as conn:

            def has_ended() -> bool:
                honest = self.workers[-1]
                if not honest.is_alive and honest.wait() == NO_DATABASE:  # a busy machine; Kubernetes would start it again too
                    self._start_an_honest_one()
                return conn.execute(LEFT).fetchone() == (0,)

            try:
                until(has_ended, MOST_PATIENCE, every=0.01)
            except TimeoutError:
                rows = conn.execute(
                    "SELECT id, kind, state, attempt_no, worker_id::text, run_after, error FROM holdfast.jobs "
                    "WHERE state NOT IN ('completed', 'failed', 'cancelled')"
                ).fetchall()
                self.complaints.append(f"after {MOST_PATIENCE:.0f} s without faults this is left: {rows}")

    def _start_an_honest_one(self) -> None:
        url = self.stage.postgres.url
        self.workers.append(self.stage.forks.start(url, self.folder, lease=LEASE, name="honest", warm=self.plan.warm))

    def _end_the_workers(self) -> None:
        living = [worker for worker in self.workers if worker.is_alive]
        for worker in living:
            worker.send(signal.SIGTERM)
        for worker in living:
            try:
                code = worker.wait(20)
            except TimeoutError:
                self.complaints.append(f"worker {worker.pid} was asked to stop and did not")
                worker.bury()
                continue
            told_why = code == 1 and "keeper_gave_up" in self._log()  # the database took too long to be told of the end
            twice = code == 128 + signal.SIGTERM and worker.told > 1  # the second ends it at once, and it says so
            # Minus SIGTERM, or without a database: it had only just been started.
            if code not in (0, -signal.SIGKILL, -signal.SIGTERM, NO_DATABASE) and not told_why and not twice:
                how = {1: "one", FAILED: "an exception"}.get(code, str(code))
                self.complaints.append(f"worker {worker.pid} ({worker.order.mode}) was asked to stop and ended with {how}")
        for worker in self.workers:
            worker.bury()
            if worker.code == FAILED:
                said = [line for line in self._log().splitlines() if line.startswith("worker failed")]
                self.complaints.append(f"worker {worker.pid} ({worker.order.mode}) failed by itself: {said[-1:]}")

    def _note_what_was_met(self, account: Account) -> None:
        for worker in self.workers:
            if worker.order.crash_at and worker.code == -signal.SIGKILL and worker.pid not in self.killed:
                self.exercised[f"crash: {worker.order.crash_at.partition(':')[0]}"] += 1
                self.exercised[f"crash in mode: {worker.order.mode}"] += 1
            self.exercised[f"mode: {worker.order.mode}"] += 1
        for moves in account.execution.moves.values():
            self.exercised.update(f"move: {move.move}" for move in moves)
        self.exercised["frozen before its act"] += sum(not line.is_prompt for line in account.lines)
        for line in self._log().splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(line)["event"]
                if said.isidentifier():  # an event of ours, and no sentence of a library
                    self.exercised[f"said: {said}"] += 1

    def _log(self) -> str:
        """What all the workers said."""
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    # ------------------------------------------------------------------------------------------------- jobs

    def _enqueue(self, count: int) -> None:
        for _ in range(min(count, len(self.waiting))):
            new = self.waiting.pop(0)
            unsure = len(self.acknowledged) < self.plan.unsure and self.heal_at is None
            self.acknowledged.append(Acknowledged(self._enqueue_one(new, unsure=unsure), new))

    def _enqueue_one(self, new: NewJob, *, unsure: bool) -> int:
        """If the connection breaks under it, ask again under the same key: that is what it is for."""
        if unsure:
            self.stage.proxy.cut("INSERT INTO holdfast.jobs", side=self.rng.choice(("before", "after")))
            self.exercised["enqueue: asked again"] += 1
        url = self.stage.postgres.through(self.stage.proxy.port) if unsure else self.stage.postgres.url
        deadline = time.monotonic() + MOST_PATIENCE
        while True:
            try:
                with psycopg.connect(url, autocommit=True, connect_timeout=5) as conn:
                    return enqueue_sync(conn, new).id
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                url = self.stage.postgres.url
                self.stage.postgres.wait_until_it_answers()

    def _connect(self) -> psycopg.Connection[Any]:
        """The server may be recovering."""
        self.stage.postgres.wait_until_it_answers()
        return psycopg.connect(self.stage.postgres.url, autocommit=True)

    def _lines(self) -> int:
        try:
            return (self.folder / "witness").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    # ------------------------------------------------------------------------------------------------- faults

    def _some_worker(self) -> Forked | None:
        frozen = {worker.pid for _, worker in self.frozen}
        living = [worker for worker in self.workers if worker.is_alive and worker.pid not in frozen]
        return self.rng.choice(living) if living else None

    def _kill(self) -> None:
        if (worker := self._some_worker()) is not None:
            self.killed.add(worker.pid)
            worker.kill_all()
            self.exercised["fault: kill"] += 1

    def _stop(self) -> None:
        if (worker := self._some_worker()) is not None:
            worker.stop()
            self.frozen.append((time.monotonic() + LEASE * self.rng.uniform(0.3, 2.0), worker))
            self.exercised["fault: stop"] += 1

    def _sigterm(self) -> None:
        if (worker := self._some_worker()) is not None:
            worker.send(signal.SIGTERM)
            self.exercised["fault: sigterm"] += 1

    def _terminate(self) -> None:
        if self.stage.postgres.terminate_backends(self.rng, self.rng.randint(1, 8)):
            self.exercised["fault: terminate"] += 1

    def _cut(self, side: str) -> None:
        before = self.stage.proxy.cuts
        self.stage.proxy.cut(self.rng.choice(WHERE_TO_CUT), side=side, nth=self.rng.randint(1, 3))
        with contextlib.suppress(TimeoutError):
            until(lambda: self.stage.proxy.cuts > before, LEASE / 2)
            self.exercised[f"fault: cut {side}"] += 1

    def _cut_before(self) -> None:
        self._cut("before")

    def _cut_after(self) -> None:
        self._cut("after")

    def _cut_all(self) -> None:
        self.exercised["fault: cut all"] += bool(self.stage.proxy.cut_all())

    def _black_hole(self) -> None:
        self.stage.proxy.black_hole()
        self.heal_at = time.monotonic() + LEASE * self.rng.uniform(0.3, 1.8)
        self.exercised["fault: black hole"] += 1

    def _delay(self) -> None:
        self.stage.proxy.delay(self.rng.choice((0.02, 0.1, 0.4)))
        self.heal_at = time.monotonic() + LEASE * self.rng.uniform(0.3, 1.0)
        self.exercised["fault: delay"] += 1

    def _restart(self) -> None:
        self.stage.postgres.restart(self.rng.choice((signal.SIGQUIT, signal.SIGINT)))
        self.exercised["fault: restart"] += 1

    def _lose_rows(self) -> None:
        """What an asynchronous failover does to workers that have just registered: their rows are gone, and they go on. Some
        die before they can register again."""
        worker = self._some_worker() if self.rng.random() < 0.5 else None
        with self._connect() as conn:
            lost = conn.execute("DELETE FROM holdfast.workers").rowcount
        if worker is not None:
            self.killed.add(worker.pid)
            worker.kill_all()
        self.exercised["fault: lose rows"] += lost > 0

    def _kill_backend(self) -> None:
        self.exercised["fault: kill backend"] += self.stage.postgres.kill_backend(self.rng)


SOMETIMES = (
    *(f"fault: {fault}" for fault in FAULTS),
    *(f"crash: {point}" for point in WORKER_POINTS),
    *(f"mode: {mode}" for mode in MODES),
    *("move: rescue", "move: release", "move: retry", "move: submit", "enqueue: asked again", "said: writeback_stale_attempt"),
    "said: executor_died",
)


def never_exercised(exercised: Counter[str]) -> list[str]:
    """I22: the faults and crash points that a run should have met and did not."""
    return [what for what in SOMETIMES if not exercised[what]]


def play_seeds(folder: Path, seeds: list[int], on_result: Callable[[Result], None]) -> None:
    """Play them one after the other on a stage of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    with Stage.open(folder) as stage:
        for seed in seeds:
            on_result(stage.play(seed))


if __name__ == "__main__":
    from proof.processes.run import main

    main()
