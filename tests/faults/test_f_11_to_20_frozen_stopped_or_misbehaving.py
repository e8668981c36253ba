"""F-11 to F-20: processes that are frozen past their lease, stopped, crashing, blocked, or started simultaneously."""

from __future__ import annotations

import json
import signal
import time
from datetime import timedelta

import pytest
from tests.faults.conftest import PATIENCE, Scene

from holdfast.database.pool import IDLE_LIMIT, connect_sync
from holdfast.jobs.model import Lock

pytestmark = pytest.mark.processes

LEASE_OF = "SELECT lease_until FROM holdfast.workers WHERE pid = %s"
SESSIONS = """
    SELECT pid FROM pg_stat_activity
    WHERE application_name = 'holdfast' AND datname = current_database()
      AND query <> ''  -- the server has a session before its client knows that it is connected
"""


@pytest.mark.more
def test_f_11_a_worker_stopped_past_its_lease_is_refused_everywhere(scene: Scene):
    """Heartbeat, checkpoint, progress, finish, unlock and child: all come to nothing, all are logged, and it works on."""
    walks = scene.add("fault.walker")
    talks = scene.add("fault.talker")  # still at it when it wakes up: the heartbeat tells it first
    child = scene.add("fault.parent", key="k", waits=True, _locks=(Lock("k"),))
    worker = scene.worker(name="frozen", lease=5.0)  # the lease ends by itself: until then an effect would be allowed
    scene.until(lambda: {line.job for line in scene.lines("start")} == {walks, talks, child})
    scene.until(lambda: scene.lines("effect", walks))
    worker.stop()
    stopped = time.monotonic()

    scene.worker(name="successor", concurrency=8)
    scene.until(lambda: scene.job(child)[0] == "completed" and scene.job(talks)[0] == "completed")
    scene.until(lambda: any(line.pid != worker.pid for line in scene.lines("effect", walks)))
    worker.go_on()
    scene.touch("end of parent")
    refused = "writeback_stale_attempt"
    scene.until(lambda: {"checkpoint", "complete"} <= {line["operation"] for line in scene.said(refused)})
    talk = scene.lines("start", talks)[0].attempt

    def refusals() -> list[str]:
        """Of the attempt of the frozen worker that still runs."""
        return [line["operation"] for line in scene.said(refused) if line["attempt_id"] == talk]

    scene.until(lambda: refusals() == ["heartbeat"])
    scene.touch("go on")
    scene.until(lambda: len(refusals()) == 2)

    assert {line["job_id"] for line in scene.said(refused)} == {walks, talks, child}
    assert all(line.checked < stopped for line in scene.lines("effect") if line.pid == worker.pid), "it was allowed to act"
    scene.touch("walked")
    assert scene.value("SELECT count(*) FROM holdfast.jobs WHERE parent_id = %s", child) == 1

    after = scene.add("proof.quick")
    scene.until(lambda: scene.job(after)[0] == "completed")
    assert worker.is_alive, "it goes on by itself"
    scene.all_is_well()


def test_f_12_freeze_between_check_and_effect_is_attributable_and_not_published(scene: Scene):
    job = scene.add("fault.late")
    worker = scene.worker(name="frozen", lease=5.0)  # the lease ends by itself: until then the effect would be allowed
    scene.until(lambda: scene.lines("start", job) and worker.is_stopped)

    scene.worker(name="successor")
    scene.until(lambda: scene.job(job)[0] == "completed")
    worker.go_on()
    scene.until(lambda: len(scene.lines("effect", job)) == 2)
    account = scene.all_is_well()

    late = [line for line in account.lines if line.what == "effect" and line.pid == worker.pid]
    other = [line for line in account.lines if line.what == "effect" and line.pid != worker.pid]
    assert late[0].fence < other[0].fence
    assert late[0].attempt != other[0].attempt
    assert account.execution.records.published == [(job, other[0].attempt)]


def test_f_13_transaction_of_a_frozen_process_is_ended_by_the_server(scene: Scene):
    """Its row locks would keep everybody from its jobs for as long as it is frozen."""
    job = scene.add("fault.holder")
    worker = scene.worker(name="frozen")
    scene.until(lambda: scene.lines("finish", job) and worker.is_stopped)
    scene.expire(worker)

    scene.everything_ends()

    assert scene.moves(job) == ["rescue", "complete"]


@pytest.mark.parametrize("mode", ["worker", "in process", "keeper"])
def test_f_13_every_connection_of_a_worker_has_a_limit_on_idle_transactions(scene: Scene, mode: str):
    """The server names the connections, the process tells what each of its own was opened with."""
    job = scene.add("fault.connections")
    scene.worker(mode=mode)
    scene.until(lambda: scene.lines("start", job))
    before = set(scene.conn.execute(SESSIONS).fetchall())
    scene.touch("go on")
    scene.until(lambda: scene.lines("finish", job))
    known = dict(json.loads((scene.folder / "connections").read_text()))

    def unknown() -> set[int]:
        """Sessions that were there before and after it told of them. One that was closed before may go on for an instant."""
        return {pid for (pid,) in before & set(scene.conn.execute(SESSIONS).fetchall())} - {int(pid) for pid in known}

    scene.until(lambda: mode == "keeper" or not unknown(), what="that the process tells of every session")
    scene.all_is_well()

    assert len(known) >= 2, "for statements and for hints, and where there is no keeper for the heartbeat"
    for given in known.values():
        assert "options" not in given, "PgBouncer refuses it; the idle limit is set by a statement"
        assert given["tcp_user_timeout"] == "5000"


def test_f_13_url_options_keep_the_idle_limit_unless_they_set_it(scene: Scene):
    def limit(options: str) -> tuple[str, str]:
        with connect_sync(scene.postgres.url + options) as conn:
            row = conn.execute("SELECT current_setting(%s), current_setting('work_mem')", [IDLE_LIMIT]).fetchone()
        assert row is not None
        return row

    assert limit("?options=-c%20work_mem%3D7MB") == ("10s", "7MB")
    assert limit(f"?options=-c%20work_mem%3D7MB%20-c%20{IDLE_LIMIT}%3D3s") == ("3s", "7MB")
    assert limit("")[0] == "10s"


def test_f_15_sigterm_releases_jobs_without_using_an_attempt(scene: Scene):
    job = scene.add("fault.endless")
    worker = scene.worker(grace=0.1)
    scene.until(lambda: scene.lines("start", job))

    worker.send(signal.SIGTERM)

    assert worker.wait(PATIENCE) == 0
    assert scene.job(job) == ("pending", 1, 0, 0)
    scene.everything_ends()
    assert scene.moves(job) == ["release", "complete"]


def test_f_16_sigterm_then_sigkill_is_an_ordinary_crash(scene: Scene):
    job = scene.add("fault.stubborn")
    worker = scene.worker(grace=PATIENCE)
    scene.until(lambda: scene.job(job, "begun_at")[0])

    worker.send(signal.SIGTERM)
    scene.until(lambda: scene.said("worker_stopping"))
    worker.kill()

    assert worker.wait(PATIENCE) == -9
    scene.expire(worker)
    scene.everything_ends()
    assert scene.job(job) == ("completed", 2, 0, 1)


@pytest.mark.more
@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("segfault", -signal.SIGSEGV)])
def test_f_17_crashing_job_is_quarantined_without_affecting_others(scene: Scene, how: str, code: int):
    poison = scene.add("fault.poison", how=how, _max_crashes=2)
    others = [scene.add("proof.steps", steps=3, pause=0.02) for _ in range(3)]

    for _ in range(20):
        worker = scene.worker()
        scene.until(lambda worker=worker: not worker.is_alive or scene.job(poison)[0] == "failed")
        if scene.job(poison)[0] == "failed":
            break
        assert worker.wait(PATIENCE) == code
        scene.expire(worker)
    scene.until(lambda: all(scene.job(job)[0] == "completed" for job in others))

    state, errors, cause = scene.job(poison, "state, errors, cause")
    assert (state, errors) == ("failed", 0)
    assert cause is not None
    assert scene.moves(poison)[-1] == "quarantine"
    scene.all_is_well()


def test_f_18_a_handler_that_blocks_the_loop_keeps_its_lease(scene: Scene):
    job = scene.add("fault.sleeper")
    worker = scene.worker()
    scene.until(lambda: scene.lines("start", job))
    for _ in range(3):
        last = scene.value("SELECT lease_until FROM holdfast.workers WHERE pid = %s", worker.pid)
        scene.until(
            lambda last=last: scene.value("SELECT lease_until > %s FROM holdfast.workers WHERE pid = %s", last, worker.pid)
        )
    scene.touch("wake up")

    scene.all_is_well()

    assert scene.moves(job) == ["complete"]


def test_f_19_a_handler_that_never_stops_loses_its_job_and_its_finish(scene: Scene):
    job = scene.add("fault.stubborn", _max_runtime=timedelta(seconds=0.2))
    worker = scene.worker(name="stuck", concurrency=1)
    scene.until(lambda: scene.job(job, "deadline_at")[0])
    # Nobody waits for the grace of an overdue attempt here: its time is moved instead.
    scene.conn.execute("UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - interval '40 s' WHERE id = %s", [job])

    scene.worker(name="successor")
    scene.until(lambda: scene.job(job)[0] == "completed")
    scene.touch("give in")
    scene.until(lambda: len(scene.lines("finish", job)) == 2)
    scene.until(lambda: scene.said("writeback_stale_attempt"))

    assert scene.moves(job) == ["rescue", "complete"]
    assert [line.pid == worker.pid for line in scene.lines("finish", job)] == [False, True]
    scene.all_is_well()


@pytest.mark.more
def test_f_20_many_simultaneous_starts_claim_nothing_twice(scene: Scene):
    """A small one, of real processes; `benchmarks/herd.py` has 50 workers and 50,000 jobs, and measures the claims."""
    with scene.conn.transaction():
        jobs = [scene.add("proof.quick") for _ in range(300)]
    scene.postgres.restart(signal.SIGINT)
    for number in range(8):
        scene.worker(name=f"herd-{number}", beat=0.5)
    scene.reconnect()

    account = scene.all_is_well()

    assert len({line.job for line in account.lines}) == len(jobs) == len(scene.lines("start"))
