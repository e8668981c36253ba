"""F-01 to F-10: a real SIGKILL at each step of a job's life, in a real process. What was not committed never was."""

from __future__ import annotations

import pytest
from tests.faults.conftest import Scene

from holdfast.jobs.model import Lock

pytestmark = pytest.mark.processes

LOCK = (Lock("k"),)
HOLDERS = "SELECT count(*) FROM holdfast.lock_holders"
CHILDREN = "SELECT count(*) FROM holdfast.jobs WHERE parent_id IS NOT NULL"
RENEWED = "SELECT beat_at > started_at FROM holdfast.workers"


def test_f_01_killed_before_the_claim_leaves_the_job_untouched(scene: Scene):
    job = scene.add("proof.quick")
    scene.doomed("claim.before")
    assert scene.job(job) == ("pending", 0, 0, 0)

    scene.everything_ends()

    assert scene.job(job) == ("completed", 1, 0, 0)


def test_f_02_killed_inside_the_claim_is_rolled_back_with_its_lock(scene: Scene):
    plain, locked = scene.add("proof.quick"), scene.add("proof.locked", key="k", pause=0.0, _locks=LOCK)
    scene.doomed("claim.in_tx")
    assert [scene.job(job) for job in (plain, locked)] == [("pending", 0, 0, 0)] * 2
    assert scene.value(HOLDERS) == 0

    scene.everything_ends()

    assert scene.job(locked) == ("completed", 1, 0, 0)


def test_f_03_killed_after_the_claim_is_claimed_again_under_another_attempt(scene: Scene):
    job = scene.add("proof.locked", key="k", pause=0.0, _locks=LOCK)
    scene.doomed("claim.after_commit")
    first = scene.job(job, "attempt_id")
    assert scene.job(job) == ("running", 1, 0, 0)
    assert scene.value(HOLDERS) == 1

    scene.everything_ends()

    assert scene.moves(job) == ["rescue", "complete"]
    assert scene.lines("finish")[0].attempt != str(first[0])
    same = "SELECT count(DISTINCT xid) FROM holdfast.history WHERE job_id = %s AND move = 'rescue'"
    assert scene.value(same, job) == 1
    assert scene.value(HOLDERS) == 0


def test_f_04_killed_after_the_lock_leaves_no_orphan(scene: Scene):
    first = scene.add("proof.locked", key="k", pause=0.0, _locks=LOCK)
    second = scene.add("proof.locked", key="k", pause=0.0, _locks=LOCK)
    scene.doomed("lock.after")
    assert scene.value(HOLDERS) == 1

    scene.everything_ends()

    assert scene.job(first)[0] == scene.job(second)[0] == "completed"
    assert scene.value(HOLDERS) == 0


def test_f_05_killed_in_the_middle_runs_again_and_finishes_once(scene: Scene):
    job = scene.add("proof.steps", steps=3, pause=0.01)
    scene.doomed("run.mid:3")

    scene.everything_ends()

    assert len(scene.lines("start", job)) == 2
    assert len(scene.lines("finish", job)) == 1
    assert scene.job(job, "state, attempt_no, errors") == ("completed", 2, 0)
    assert scene.job(job, "crashes + confirm_start::int") == (1,), "counted if a beat had seen it run, and suspected if not"


@pytest.mark.parametrize(("point", "extended"), [("hb.in_tx", False), ("hb.after", True)])
def test_f_06_killed_at_a_heartbeat_has_extended_its_lease_or_not(scene: Scene, point: str, extended: bool):
    job = scene.add("fault.endless")
    dead = scene.worker(point)
    assert dead.wait(120) == -9
    assert scene.value(RENEWED) is extended
    scene.expire(dead)
    scene.touch("end")  # the first heartbeat may precede the claim: then the next worker has the first attempt

    scene.everything_ends()

    assert scene.job(job)[0] == "completed"


@pytest.mark.parametrize("point", ["complete.in_tx_after_update", "complete.in_tx_after_unlock", "complete.in_tx_after_child"])
def test_f_07_killed_inside_the_completion_leaves_neither_an_end_nor_a_child(scene: Scene, point: str):
    job = scene.add("fault.parent", key="k", _locks=LOCK)
    scene.doomed(point)
    assert scene.job(job)[0] == "running"
    assert scene.value(CHILDREN) == 0
    assert scene.value(HOLDERS) == 1

    scene.everything_ends()

    assert scene.moves(job) == ["rescue", "complete"]
    assert scene.value(CHILDREN) == 1


@pytest.mark.parametrize("point", ["publish.in_tx_before", "publish.in_tx_after"])
def test_f_07_killed_around_publish_publishes_nothing(scene: Scene, point: str):
    job = scene.add("proof.publish")
    scene.doomed(point)
    assert scene.value("SELECT count(*) FROM proof.published") == 0

    scene.everything_ends()

    assert scene.moves(job) == ["rescue", "complete"]
    assert scene.value("SELECT count(*) FROM proof.published") == 1


@pytest.mark.parametrize(
    ("kind", "arguments"), [("proof.quick", {}), ("proof.fan", {"width": 1}), ("proof.chain", {"length": 2})]
)
def test_f_08_killed_after_the_completion_is_done_once_with_its_child(scene: Scene, kind: str, arguments: dict[str, int]):
    job = scene.add(kind, **arguments)
    scene.doomed("complete.after_commit_before_ack")
    assert scene.job(job) == ("completed", 1, 0, 0)

    scene.everything_ends()

    assert scene.moves(job) == ["complete"]
    assert len(scene.lines("start", job)) == 1
    children = scene.conn.execute("SELECT step FROM holdfast.jobs WHERE parent_id = %s", [job]).fetchall()
    assert len(children) == len(set(children))


def test_f_09_killed_after_the_unlock_leaves_nothing_to_do(scene: Scene):
    job = scene.add("proof.locked", key="k", pause=0.0, _locks=LOCK)
    scene.doomed("unlock.after")
    assert scene.job(job) == ("completed", 1, 0, 0)
    assert scene.value(HOLDERS) == 0

    scene.all_is_well()


@pytest.mark.parametrize("point", ["reap.in_tx", "reap.after"])
def test_f_10_killed_rescuer_is_replaced_and_the_job_rescued_once(scene: Scene, point: str):
    job = scene.add("proof.quick")
    scene.doomed("claim.after_commit")
    scene.doomed(point, kinds=("proof.steps",))  # it may rescue the job, and not claim it in another of its tasks
    assert scene.moves(job) == ([] if point == "reap.in_tx" else ["rescue"])

    scene.everything_ends()

    assert scene.moves(job) == ["rescue", "complete"]
    assert scene.job(job)[:2] == ("completed", 2)


@pytest.mark.parametrize(
    ("point", "queries"),
    [
        ("submit.before_intent", 0),
        ("submit.after_intent", 0),
        ("submit.after_send", 1),
        ("submit.after_reply_before_persist", 1),
        ("poll.after_reply_before_persist", 1),
    ],
)
def test_f_05_killed_around_a_submit_submits_once(scene: Scene, point: str, queries: int):
    job = scene.add("proof.engine", seconds=0.0)
    scene.doomed(point)
    assert len(scene.lines("submit", job)) == queries

    scene.everything_ends()

    assert len(scene.lines("submit", job)) == 1
    assert scene.job(job)[0] == "completed"
