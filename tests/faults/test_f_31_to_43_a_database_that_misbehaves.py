"""F-31 to F-43: read-only, errors out of nowhere, clocks that lie, lost answers, other versions, no hints, stale statistics."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from tests.faults.conftest import MODULES, Scene

from holdfast.jobs.claim import CLAIM

pytestmark = pytest.mark.processes

ERRORS = {
    "57014": "statement timeout",
    "55P03": "lock timeout",
    "40P01": "deadlock",
    "40001": "serialization",
    "53100": "disk full",
}
BREAK = """
    CREATE FUNCTION proof.breaks() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF random() < {share} AND current_setting('application_name') = 'holdfast' THEN
            RAISE EXCEPTION 'injected' USING ERRCODE = (ARRAY[{codes}])[1 + floor(random() * {count})::int];
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER breaks AFTER UPDATE ON holdfast.jobs FOR EACH STATEMENT EXECUTE FUNCTION proof.breaks();
    CREATE TRIGGER breaks AFTER UPDATE ON holdfast.workers FOR EACH STATEMENT EXECUTE FUNCTION proof.breaks();
"""
MEND = "DROP FUNCTION proof.breaks() CASCADE"


@contextmanager
def injected(scene: Scene, share: float, *codes: str) -> Iterator[None]:
    """Statements of workers fail with these errors, so many of them, after they were executed."""
    listed = ", ".join(f"'{code}'" for code in codes)
    scene.conn.execute(BREAK.format(share=share, codes=listed, count=len(codes)))
    try:
        yield
    finally:
        scene.conn.execute(MEND)


def test_f_31_read_only_database_leaves_workers_idle_and_uses_no_attempt(scene: Scene):
    worker = scene.worker(lease=30.0)
    has_beaten = "SELECT count(*) FROM holdfast.workers WHERE beat_at > started_at"  # so all its connections are open
    scene.until(lambda: scene.value(has_beaten))
    scene.conn.execute("ALTER DATABASE holdfast SET default_transaction_read_only = on")
    try:
        scene.conn.execute("SET default_transaction_read_only = off")
        scene.postgres.terminate_backends(random.Random(1), 100)
        job = scene.add("proof.quick")
        scene.until(lambda: len(scene.said("heartbeat_failed")) >= 2)
        assert scene.job(job) == ("pending", 0, 0, 0)
        assert worker.is_alive
    finally:
        scene.conn.execute("ALTER DATABASE holdfast RESET default_transaction_read_only")
    scene.postgres.terminate_backends(random.Random(1), 100)

    scene.all_is_well()

    assert scene.job(job) == ("completed", 1, 0, 0)


@pytest.mark.more
def test_f_33_34_injected_errors_never_leave_a_half_transaction(scene: Scene):
    """Timeouts, deadlocks, serialization failures and a full disk, on one statement of ten."""
    workers = [scene.worker(lease=5.0, name=f"worker-{number}") for number in range(2)]
    # Then: one that cannot even announce itself ends and says so, and whoever keeps it starts another.
    scene.until(lambda: scene.value("SELECT count(*) FROM holdfast.workers WHERE stopped_at IS NULL") == 2)
    with injected(scene, 0.1, *ERRORS):
        for _ in range(6):
            scene.add("proof.publish")
            scene.add("proof.chain", length=3)
            scene.add("proof.fan", width=2)
            scene.add("proof.flaky", errors=1)
        scene.until(lambda: scene.value("SELECT count(*) FROM holdfast.jobs WHERE finished_at IS NULL") == 0)
        assert all(worker.is_alive for worker in workers)

    scene.all_is_well()


@pytest.fixture(scope="session")
def clock_shift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the wall clock of a process."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("shifting the clock of a process needs a C compiler on Linux")
    library = tmp_path_factory.mktemp("clock") / "shift.so"
    source = Path(__file__).with_name("clock_shift.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


SHIFTS = [timedelta(hours=1), *(pytest.param(timedelta(hours=hours), marks=pytest.mark.more) for hours in (-1, 24 * 3653))]


@pytest.mark.more
@pytest.mark.parametrize("shift", SHIFTS, ids=str)
def test_f_37_wall_clock_of_a_worker_has_no_effect(scene: Scene, clock_shift: Path, shift: timedelta):
    seconds = int(shift.total_seconds())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    environment |= {"LD_PRELOAD": str(clock_shift), "CLOCK_SHIFT": str(seconds), "PROOF_FOLDER": str(scene.folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")])
    seen = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], env=environment, capture_output=True, text=True, check=True
    )
    assert abs(float(seen.stdout) - time.time() - seconds) < 60, "the clock was not shifted"
    jobs = [scene.add("proof.flaky", errors=1), scene.add("proof.quick", _run_after=timedelta(seconds=0.3))]

    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "run", "--drain", "--import", MODULES[0], "--dsn", scene.postgres.url],
        env={**environment, "HOLDFAST_BEAT_SECONDS": "0.2", "HOLDFAST_LEASE_SECONDS": "5"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    scene.everything_ends()
    assert [scene.moves(job) for job in jobs] == [["retry", "complete"], ["complete"]]


OF_WORKERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"


def test_f_38_the_databases_clock_steps_forward_and_the_fence_still_holds(scene: Scene):
    """Time is moved by moving rows: to them, the clock has stepped by ten minutes. Leases end early, nothing is done twice.

    The first worker stops between two effects: its own clock would let it act on an answer that came before the step."""
    job = scene.add("fault.twice")
    first = scene.worker(name="first")
    scene.until(lambda: scene.lines("effect", job))
    first.stop()
    step = "UPDATE holdfast.workers SET lease_until = lease_until - interval '10 min' WHERE pid = %s AND lease_until > now()"

    def runs_elsewhere() -> bool:
        scene.conn.execute(step, [first.pid])  # again: the server may execute the last heartbeat of a process that has stopped
        return any(line.pid != first.pid for line in scene.lines("start", job))

    scene.worker(name="second")
    scene.until(runs_elsewhere)
    first.go_on()
    scene.touch("go on")
    scene.until(lambda: scene.said("writeback_stale_attempt"))
    account = scene.all_is_well()

    assert [move.move for move in account.execution.moves[job]] == ["rescue", "complete"]
    assert [line.pid == first.pid for line in scene.lines("effect", job)] == [True, False, False]


def test_f_38_the_databases_clock_steps_back_and_leases_last_that_much_longer(scene: Scene):
    job = scene.add("fault.endless")
    worker = scene.worker()
    scene.until(lambda: scene.lines("start", job))
    worker.kill()
    worker.wait()
    scene.until(lambda: scene.value(OF_WORKERS) == 0, what="the end of its sessions, and so of its last beat")
    scene.conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() + interval '1.5 s'")
    until = scene.value("SELECT lease_until FROM holdfast.workers")

    scene.everything_ends()

    rescued = scene.value("SELECT at FROM holdfast.history WHERE job_id = %s AND move = 'rescue'", job)
    assert rescued >= until


@pytest.mark.more
def test_f_39_lost_responses_cost_only_time(scene: Scene):
    """The server has done it and the client sees a dead connection: three times of a hundred, everywhere."""
    scene.proxy.cut_some(0.03, seed=39)
    for _ in range(5):
        scene.add("proof.quick")
        scene.add("proof.publish")
        scene.add("proof.chain", length=3)
        scene.add("proof.engine", seconds=0.0)
    scene.worker(by_proxy=True, lease=2.0, name="first")
    scene.worker(by_proxy=True, lease=2.0, name="second")
    scene.until(lambda: scene.proxy.cuts >= 5)
    scene.proxy.heal()

    scene.everything_ends()


def test_f_41_two_versions_run_side_by_side(scene: Scene):
    """A worker leaves jobs of a newer version alone; the newer worker runs both."""
    scene.worker(version=1, name="old")
    scene.worker(version=2, name="new", lease=5.0)
    new = [scene.add("proof.quick", _kind_version=2) for _ in range(5)]
    old = [scene.add("proof.quick") for _ in range(5)]

    scene.all_is_well()

    names = dict(scene.conn.execute("SELECT id::text, name FROM holdfast.workers").fetchall())
    ran = {line.job: names[line.worker] for line in scene.lines("finish")}
    assert {ran[job] for job in new} == {"new"}
    assert set(ran) == {*old, *new}


def test_f_42_without_any_hint_the_safety_poll_finds_the_work(scene: Scene):
    scene.conn.execute("INSERT INTO holdfast.controls (kind, paused_at) VALUES ('proof.quick', clock_timestamp())")
    worker = scene.worker(beat=0.3, lease=5.0)
    job = scene.add("proof.quick")
    scene.until(lambda: scene.said("worker_started"))
    beats = (
        "SELECT (SELECT count(*) FROM holdfast.workers WHERE beat_at > (SELECT created_at FROM holdfast.jobs WHERE id = %s))"
    )
    scene.until(lambda: scene.value(beats, job) == 1)
    assert scene.job(job)[0] == "pending"

    scene.conn.execute("DELETE FROM holdfast.controls")  # by hand: nobody tells anybody

    scene.all_is_well()
    assert worker.code == -9


def test_f_42_a_lost_listen_is_opened_again(scene: Scene):
    worker = scene.worker(beat=30.0, lease=120.0)  # only hints could wake it
    scene.until(lambda: scene.said("worker_started"))
    for _ in range(3):
        scene.postgres.terminate_backends(random.Random(1), 100)
        job = scene.add("proof.quick")
        scene.until(lambda job=job: scene.job(job)[0] == "completed")

    assert worker.is_alive
    scene.all_is_well()


@pytest.mark.parametrize("plan", ["enable_hashjoin", "enable_nestloop", "enable_indexscan", "enable_bitmapscan"])
def test_f_43_stale_statistics_never_make_a_claim_take_too_many(scene: Scene, plan: str):
    """Statistics of one row, then ten thousand: whatever plan that leads to, a claim takes as many as it may."""
    scene.add("proof.quick")
    scene.conn.execute("ANALYZE holdfast.jobs")
    scene.conn.execute(
        "INSERT INTO holdfast.jobs (kind, payload) "
        "SELECT 'proof.quick', jsonb_build_object('n', n) FROM generate_series(1, 5000) n"
    )
    with psycopg.connect(scene.postgres.url, autocommit=True) as conn:
        conn.execute(f"SET {plan} = off")
        worker = "00000000-0000-0000-0000-000000000001"
        conn.execute(
            "INSERT INTO holdfast.workers (id, name, host, pid, version, lease_until) "
            "VALUES (%s, 'w', 'h', 1, '1', clock_timestamp() + interval '1 h')", [worker]
        )  # fmt: skip
        kinds, versions = ["proof.quick"], [1]
        taken = conn.execute(
            CLAIM,
            {"worker_id": worker, "kinds": kinds, "versions": versions, "queues": ["default"], "limit": 3, "begins": True},
        ).fetchall()
    assert len(taken) == 3
    assert scene.value("SELECT count(*) FROM holdfast.jobs WHERE state = 'running'") == 3
