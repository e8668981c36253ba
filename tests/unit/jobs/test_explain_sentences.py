"""Every sentence that `explain` can say, from facts to words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.jobs.views.explain import Facts, sentence

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

READY = Facts(
    id=7,
    kind="invoice.render",
    queue="default",
    state="pending",
    waiting_for=None,
    attempt_no=0,
    errors=0,
    max_attempts=3,
    crashes=0,
    max_crashes=3,
    cause=None,
    error=None,
    parents_left=0,
    message=None,
    poll_count=0,
    due_in=None,
    running_for=None,
    poll_in=None,
    ended_ago=None,
    cancelling=False,
    worker=None,
    lease_left=None,
    paused_as=None,
    pause_reason=None,
    pause_actor=None,
    ahead=0,
    workers_alive=1,
    workers_quiet=0,
)
RUNNING: dict[str, Any] = {
    "state": "running",
    "attempt_no": 2,
    "worker": "pod-3",
    "lease_left": 20 * SECOND,
    "running_for": 5 * MINUTE,
}
# facts, holder, parent → sentence
SENTENCES: dict[str, tuple[dict[str, Any], tuple[Any, ...] | None, tuple[Any, ...] | None, str]] = {
    "ready and next": (
        {},
        None,
        None,
        "It is ready and next in queue 'default'; check that a worker runs invoice.render.",
    ),
    "newer than every worker": (
        {"kind_version": 3, "known_version": 2},
        None,
        None,
        "It is ready, but no worker can run it: it needs version 3 of invoice.render; workers know up to 2; "
        "start one with the newer code.",
    ),
    "newer than some workers": (
        {"kind_version": 3, "known_version": 3, "workers_able": 1, "workers_busy": 0},
        None,
        None,
        "It is ready and next in queue 'default'; 1 worker with room can run invoice.render.",
    ),
    "no living worker runs it": (
        {"kinds_alive": ["a", "b"], "ahead": 3},
        None,
        None,
        "It is ready, but no live worker runs invoice.render; they run a, b: was its module imported?",
    ),
    "no living worker of many runs it": (
        {"kinds_alive": ["a", "b", "c", "d", "e", "f"]},
        None,
        None,
        "It is ready, but no live worker runs invoice.render; they run a, b, c, d, e, …: was its module imported?",
    ),
    "nobody serves its queue": (
        {"known_version": 1, "queue_served": False, "queues_alive": ["a", "b"]},
        None,
        None,
        "It is ready, but no live worker that runs invoice.render serves queue 'default'; they serve a, b: "
        "start one with --queue default.",
    ),
    "all that run it are quiet": (
        {"known_version": 1, "kinds_alive": ["invoice.render"], "workers_quiet": 1},
        None,
        None,
        "It is ready, but every worker that runs invoice.render is quiet; `holdfast worker quiet ID --undo`, or start another.",
    ),
    "the only worker that runs it is busy": (
        {"known_version": 1, "workers_able": 1, "workers_busy": 1},
        None,
        None,
        "It is ready and next in queue 'default'; the only worker that runs it is busy.",
    ),
    "all that run it are busy": (
        {"known_version": 1, "workers_able": 12, "workers_busy": 12},
        None,
        None,
        "It is ready and next in queue 'default'; all 12 workers that run it are busy.",
    ),
    "some that run it have room": (
        {"known_version": 1, "workers_able": 12, "workers_busy": 10},
        None,
        None,
        "It is ready and next in queue 'default'; 2 workers with room can run invoice.render.",
    ),
    "at an engine that only newer workers can ask": (
        {"state": "submitted", "poll_in": -SECOND, "kind_version": 3, "known_version": 2},
        None,
        None,
        "An external engine works on it, but no worker can poll it: it needs version 3 of invoice.render; workers know "
        "up to 2; start one with the newer code.",
    ),
    "others are ahead": (
        {"ahead": 12},
        None,
        None,
        "It is ready; 12 invoice.render jobs in queue 'default' are ahead of it.",
    ),
    "very many are ahead": (
        {"ahead": 1001},
        None,
        None,
        "It is ready; more than 1,000 invoice.render jobs in queue 'default' are ahead of it.",
    ),
    "all are quiet": (
        {"workers_alive": 0, "workers_quiet": 2},
        None,
        None,
        "It is ready, but every worker is quiet; `holdfast worker quiet ID --undo`, or start another.",
    ),
    "nobody works": ({"workers_alive": 0}, None, None, "It is ready, but no worker is alive; start one for queue 'default'."),
    "delayed": ({"due_in": 40 * SECOND}, None, None, "It runs in 40 s."),
    "delayed after errors": (
        {"due_in": 3 * MINUTE, "errors": 1, "error": "Traceback …\nValueError: odd"},
        None,
        None,
        "It runs in 3 min after 1 error, the last: ValueError: odd",
    ),
    "due a moment ago": (
        {"due_in": -SECOND},
        None,
        None,
        "It is ready and next in queue 'default'; check that a worker runs invoice.render.",
    ),
    "its kind is paused": (
        {"paused_as": "invoice.render", "pause_actor": "ada", "pause_reason": "printer on fire"},
        None,
        None,
        "It could run, but invoice.render is paused by ada: printer on fire; resume it to go on.",
    ),
    "everything is paused": (
        {"paused_as": "*"},
        None,
        None,
        "It could run, but everything is paused; resume it to go on.",
    ),
    "runs": (RUNNING, None, None, "It runs: attempt 2 on pod-3, for 5 min."),
    "runs alone": (
        RUNNING | {"alone": True, "beside": 3},
        None,
        None,
        "It runs: attempt 2 on pod-3, alone in a process because an earlier one died with 3 others, for 5 min.",
    ),
    "ran alone": (
        {"state": "completed", "attempt_no": 2, "ended_ago": 3 * SECOND, "alone": True, "beside": 1},
        None,
        None,
        "Completed 3 s ago in attempt 2, which ran alone in a process because an earlier one died with 1 other.",
    ),
    "will run alone": (
        {"alone": True},
        None,
        None,
        "It is ready and next in queue 'default', and will run alone in a process because an earlier one died; "
        "check that a worker runs invoice.render.",
    ),
    "runs and says how it goes": (
        RUNNING | {"message": "page 3 of 9"},
        None,
        None,
        "It runs: attempt 2 on pod-3, for 5 min: page 3 of 9.",
    ),
    "was asked to stop": (
        RUNNING | {"cancelling": True},
        None,
        None,
        "It runs: attempt 2 on pod-3, for 5 min; it was asked to stop.",
    ),
    "its worker is silent": (
        RUNNING | {"lease_left": -SECOND},
        None,
        None,
        "Attempt 2 ran on pod-3, whose lease has expired; the next sweep rescues it.",
    ),
    "an engine has it": (
        {"state": "submitted", "poll_in": 13 * SECOND, "poll_count": 5},
        None,
        None,
        "An external engine works on it; the next poll is in 13 s (poll 5).",
    ),
    "an engine is due to be asked": (
        {"state": "submitted", "poll_in": -SECOND, "poll_count": 1},
        None,
        None,
        "An external engine works on it; the next poll is now (poll 1).",
    ),
    "waits for one parent": (
        {"state": "blocked", "waiting_for": "parents", "parents_left": 1},
        None,
        (3, "fetch", "running"),
        "It waits for 1 parent to end, next job 3 (fetch), which is running.",
    ),
    "waits for parents": (
        {"state": "blocked", "waiting_for": "parents", "parents_left": 4},
        None,
        (3, "fetch", "pending"),
        "It waits for 4 parents to end, next job 3 (fetch), which is pending.",
    ),
    "waits for a lock": (
        {"state": "blocked", "waiting_for": "lock"},
        ("table:a", 5, "compact", "pod-1", 20 * SECOND, 0),
        None,
        "It waits for lock 'table:a': job 5 (compact) holds it on pod-1, whose lease runs for another "
        "20 s and is renewed until the job ends.",
    ),
    "waits for a lock behind others": (
        {"state": "blocked", "waiting_for": "lock"},
        ("table:a", 5, "compact", "pod-1", 20 * SECOND, 2, 6, "vacuum"),
        None,
        "It waits for lock 'table:a': job 5 (compact) holds it on pod-1, whose lease runs for another "
        "20 s and is renewed until the job ends; job 6 (vacuum) and 1 more wait before it.",
    ),
    "waits for a free lock behind one that is next": (
        {"state": "blocked", "waiting_for": "lock"},
        ("table:a", None, None, None, None, 1, 6, "vacuum"),
        None,
        "It waits for lock 'table:a': job 6 (vacuum) is next and waits before it.",
    ),
    "waits for a lock of a silent worker": (
        {"state": "blocked", "waiting_for": "lock"},
        ("table:a", 5, "compact", "pod-1", -SECOND, 0),
        None,
        "It waits for lock 'table:a': job 5 (compact) holds it on pod-1, whose lease has expired: the next sweep rescues it.",
    ),
    "waits for a lock that is held without running": (
        {"state": "blocked", "waiting_for": "lock"},
        ("table:a", 5, "compact", None, None, 0),
        None,
        "It waits for lock 'table:a': job 5 (compact) holds it.",
    ),
    "waits for a lock that is free": (
        {"state": "blocked", "waiting_for": "lock"},
        ("table:a", None, None, None, None, 0),
        None,
        "It waits for lock 'table:a', which is free: the next sweep wakes it in a few seconds.",
    ),
    "waits for a slot": (
        {"state": "blocked", "waiting_for": "slot"},
        ("recalc:2024", 5, "recalc", "pod-1", 20 * SECOND, 0),
        None,
        "It waits for slot 'recalc:2024': job 5 (recalc) holds it on pod-1, whose lease runs for another "
        "20 s and is renewed until the job ends.",
    ),
    "waits for a slot that is free": (
        {"state": "blocked", "waiting_for": "slot"},
        None,
        None,
        "It waits for slot, which is free: the next sweep wakes it in a few seconds.",
    ),
    "completed": (
        {"state": "completed", "ended_ago": 2 * HOUR, "attempt_no": 2},
        None,
        None,
        "Completed 2 h ago in attempt 2.",
    ),
    "failed": (
        {"state": "failed", "ended_ago": 3 * DAY, "errors": 3, "error": "ValueError: odd"},
        None,
        None,
        "Failed 3 days ago after 3 errors of 3 allowed: ValueError: odd",
    ),
    "failed without a word": (
        {"state": "failed", "ended_ago": SECOND, "errors": 1},
        None,
        None,
        "Failed 1 s ago after 1 error of 3 allowed: no reason was given",
    ),
    "quarantined": (
        {"state": "failed", "ended_ago": MINUTE, "crashes": 3, "cause": "oom"},
        None,
        None,
        "Quarantined 60 s ago: its process crashed 3 times, the last time by oom; fix the cause, then rerun it.",
    ),
    "quarantined at the first crash": (
        {"state": "failed", "ended_ago": MINUTE, "crashes": 1, "max_crashes": 1},
        None,
        None,
        "Quarantined 60 s ago: its process crashed once, the last time by an unknown cause; fix the cause, then rerun it.",
    ),
    "cancelled": (
        {"state": "cancelled", "ended_ago": SECOND, "error": "not needed"},
        None,
        None,
        "Cancelled 1 s ago: not needed.",
    ),
    "cancelled without a word": ({"state": "cancelled", "ended_ago": SECOND}, None, None, "Cancelled 1 s ago."),
}


@pytest.mark.parametrize(("changes", "holder", "parent", "expected"), SENTENCES.values(), ids=SENTENCES.keys())
def test_each_situation_has_its_sentence(
    changes: dict[str, Any], holder: tuple[Any, ...] | None, parent: tuple[Any, ...] | None, expected: str
) -> None:
    assert sentence(replace(READY, **changes), holder, parent) == expected


def test_single_job_ahead_is_named() -> None:
    holder = ("table:a", 5, "compact", "pod-1", 20 * SECOND, 1, 6, "vacuum")

    assert "; job 6 (vacuum) waits before it." in sentence(replace(READY, state="blocked", waiting_for="lock"), holder, None)


def test_a_long_error_is_cut_to_one_line() -> None:
    found = sentence(replace(READY, state="failed", ended_ago=SECOND, errors=1, error="x" * 50 + "\n" + "y" * 5000))

    assert found.endswith("x" * 50 + " " + "y" * 148 + "…")
