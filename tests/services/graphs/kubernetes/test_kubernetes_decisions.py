"""The pure decisions of the runtime, as tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from holdfast.services.graphs.runtimes.kubernetes import manifests, retries
from holdfast.services.graphs.runtimes.kubernetes.cluster import Refused
from holdfast.services.graphs.runtimes.kubernetes.objects import Marked, Whose, whose
from holdfast.services.graphs.runtimes.kubernetes.phases import reported, state_of
from holdfast.services.graphs.runtimes.kubernetes.quantities import are_equal, megabytes
from holdfast.services.graphs.runtimes.kubernetes.removal import is_overdue
from holdfast.services.graphs.runtimes.kubernetes.resizing import Resize, outcome_of
from kube.specs import make_spec

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
WANTED = manifests.resources(3072, 2.0)
BEFORE = manifests.resources(2048, 1.0)


def pod(generation: int = 2, **status: Any) -> Pod:
    body = {"metadata": {"name": "holdfast-graph-7", "generation": generation}, "spec": {"containers": [{"name": "graph"}]}}
    return Pod.from_dict(body | {"status": status})


def container(resources: Any = None, **state: Any) -> dict[str, Any]:
    found = {"name": "graph", "image": "a:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return found | ({"resources": resources} if resources else {})


def mark(**more: Any) -> Marked:
    usual = {"kind": "Pod", "name": "holdfast-graph-7", "uid": "u", "instance_id": 7, "start_token": "s1", "fence_token": 5}
    return Marked(**{**usual, "created_at": NOON, "deleted_at": None, **more})


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, Resize.PENDING),
        ({"containerStatuses": [container(BEFORE)]}, Resize.PENDING),
        ({"containerStatuses": [container(WANTED)]}, Resize.DONE),
        ({"conditions": [("PodResizePending", "Infeasible", 2)]}, Resize.IMPOSSIBLE),
        ({"conditions": [("PodResizePending", "Deferred", 2)]}, Resize.PENDING),
        ({"conditions": [("PodResizePending", "Infeasible", 1)]}, Resize.PENDING),  # of an earlier resize
        ({"conditions": [("PodResizePending", "Infeasible", 1)], "containerStatuses": [container(WANTED)]}, Resize.DONE),
        ({"conditions": [("PodResizePending", "Infeasible", None)]}, Resize.IMPOSSIBLE),
        ({"resize": "Infeasible"}, Resize.IMPOSSIBLE),  # until 1.32
        ({"phase": "Failed"}, Resize.IMPOSSIBLE),
    ],
)
def test_what_became_of_a_resize(status: dict[str, Any], expected: Resize):
    conditions = [
        {"type": kind, "status": "True", "reason": reason} | ({"observedGeneration": seen} if seen else {})
        for kind, reason, seen in status.pop("conditions", ())
    ]

    assert outcome_of(pod(conditions=conditions, **status), WANTED) is expected


@pytest.mark.parametrize(
    ("status", "phase", "reason"),
    [
        ({}, "starting", None),
        ({"phase": "Pending"}, "starting", None),
        ({"phase": "Unknown"}, "failed", "UNEXPECTED_TERMINATION"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "failed", "UNEXPECTED_TERMINATION"),
        ({"phase": "Failed", "reason": "OutOfmemory", "message": "no room"}, "failed", "STARTUP_FAILED"),
        ({"phase": "Failed", "reason": "NodeLost"}, "failed", "UNEXPECTED_TERMINATION"),
        ({"phase": "Failed"}, "failed", "UNEXPECTED_TERMINATION"),
        (
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ErrImagePull", "message": "x"})]},
            "starting",
            None,
        ),
        (
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "InvalidImageName"})]},
            "failed",
            "STARTUP_FAILED",
        ),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}, "starting", None),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, "running", None),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 137, "reason": "OOMKilled"})]},
            "failed",
            "OOM_KILLED",
        ),
    ],
)
def test_the_state_of_a_pod(status: dict[str, Any], phase: str, reason: str | None):
    """R-04: one whose phase is Unknown has failed, as one whose phase is Failed."""
    state, _ = state_of(pod(**status))

    assert (state.phase, state.reason) == (phase, reason)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, None),
        ("Traceback …\nKeyError", None),
        ('{"code": "NO_SUCH_CODE"}', None),
        ('{"code": "DATABASE_ERROR", "message": "broken"}\nbye', "DATABASE_ERROR"),
        ('{"error_code": "SCHEMA_CREATE_ERROR"}', "SCHEMA_CREATE_ERROR"),
        ("[1]\n7", None),
    ],
)
def test_what_a_graph_server_says_at_its_end(text: str | None, code: str | None):
    found = reported(text)

    assert (found.reason if found else None) == code


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, Whose.FOREIGN),
        (mark(instance_id=8), Whose.FOREIGN),
        (mark(fence_token=9), Whose.OURS),
        (mark(deleted_at=NOON), Whose.LEAVING),
        (mark(start_token="s0", fence_token=4), Whose.EARLIER),
        (mark(start_token="s0", fence_token=5), Whose.LATER),
        (mark(start_token="s2", fence_token=6), Whose.LATER),
    ],
)
def test_whose_an_object_is(found: Marked | None, expected: Whose):
    assert whose(found, make_spec(start_token="s1", fence_token=5)) is expected


def test_only_a_pod_that_should_have_been_gone_for_long_is_overdue():
    late = NOON + timedelta(seconds=301)

    assert is_overdue(mark(deleted_at=NOON), late, 300)
    assert not is_overdue(mark(deleted_at=NOON), NOON + timedelta(seconds=299), 300)
    assert not is_overdue(mark(), late, 300)
    assert not is_overdue(mark(kind="Secret", deleted_at=NOON), late, 300)
    assert not is_overdue(mark(deleted_at=NOON), None, 300), "the time of the server is not known"


def test_pauses_grow_have_jitter_and_are_never_shorter_than_the_server_wants():
    assert [retries.delay(tries, 0.0, None) for tries in (0, 1, 2, 10, 100)] == [0.1, 0.2, 0.4, 2.5, 2.5]
    assert retries.delay(0, 0.999, None) > retries.delay(0, 0.0, None)
    assert 7.0 <= retries.delay(0, 0.0, 7.0) < retries.delay(0, 0.999, 7.0) < 8.75


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0", None), ("-1", None), (None, None), ("Wed, 21 Oct 2026", None), ("inf", None), ("nan", None)],
)
def test_retry_after(header: str | None, seconds: float | None):
    assert retries.parsed_retry_after(header) == seconds


@pytest.mark.parametrize(
    ("code", "message", "denied"),
    [
        (401, "Unauthorized", True),
        (403, 'secrets is forbidden: User "holdfast" cannot create resource "secrets" in API group ""', True),
        (403, 'pods "a" is forbidden: exceeded quota: compute, requested: memory=2Gi', False),
        (403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"', False),
        (404, 'User "holdfast" cannot get resource', False),
    ],
)
def test_a_missing_permission_is_not_a_quota(code: int, message: str, denied: bool):
    assert Refused(code, "Forbidden", message).is_denied is denied


def test_quantities_are_compared_however_they_are_written():
    assert megabytes("1.5Gi") == 1536
    assert are_equal({"cpu": "2", "memory": "2Gi"}, {"cpu": "2000m", "memory": "2048Mi"})
    assert not are_equal({"cpu": "2", "memory": "2Gi"}, {"cpu": "2", "memory": "2G"})
    assert not are_equal(None, {"cpu": "2", "memory": "2G"})
