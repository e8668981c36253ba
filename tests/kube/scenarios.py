"""Graph instances on Kubernetes: what the jobs and loops do when objects appear, disappear or fail.

The same tests run against the fake API server and a real one. `node` makes every pod ready and confirms every deletion.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from factories import value
from graph_factories import a_pass, get, new_instance, ready_snapshot, running_instance, status, until_status, worker
from holdfast.services.graphs.runtimes.kubernetes.runtime import KubernetesRuntime
from holdfast.services.graphs.setup import Graphs
from kube.node import Node
from kube.specs import make_spec
from kube.stage import Stage, until

Client = httpx2.AsyncClient
EVERYTHING = bool(os.environ.get("HOLDFAST_TEST_EVERYTHING") or os.environ.get("HOLDFAST_TEST_REAL"))


async def tally(conn: Any, name: str) -> int:
    found = await value(conn, "SELECT coalesce(sum(count), 0)::bigint FROM holdfast.tallies WHERE name = %s", name)
    return int(found)


def pod_of(instance_id: int) -> str:
    return f"holdfast-graph-{instance_id}"


# create, resize, delete


async def test_an_instance_runs_as_a_pod_and_leaves_nothing(
    analyst: Client, conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
):
    """I-06: the pod's name is known from the creation on; DELETE answers when every object is gone."""
    instance_id = await running_instance(conn, database, mapping_id)

    shown = (await analyst.get(f"/api/instances/{instance_id}")).json()["data"]
    assert (shown["status"], shown["pod_name"]) == ("running", pod_of(instance_id))
    async with worker(database):
        gone = await analyst.delete(f"/api/instances/{instance_id}")
    assert gone.status_code == 204, gone.text
    assert await stage.left(pod_of(instance_id)) == {"pods": False, "services": False, "secrets": False}


async def test_memory_is_resized_in_place(
    analyst: Client, conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
):
    """The resize subresource: a new limit, the same container."""
    instance_id = await running_instance(conn, database, mapping_id)
    before = await node.pod(pod_of(instance_id))

    async with worker(database):
        asked = await analyst.put(f"/api/instances/{instance_id}/memory", json={"memory_gb": 3})
        assert asked.status_code in (200, 202), asked.text

        async def is_resized() -> bool:
            return (await get(conn, instance_id)).memory_mb == 3072

        await until(is_resized)

    after = await node.pod(pod_of(instance_id))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["containers"][0]["resources"]["limits"]["memory"] in ("3Gi", "3072Mi")
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert await status(conn, instance_id) == "running"


async def test_an_image_that_cannot_be_pulled_fails_the_instance(
    conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
):
    """`starting` with a pod that cannot start does not wait for a human."""
    instance_id = await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))
    node.held.add(pod_of(instance_id))
    async with worker(database):

        async def is_created() -> bool:
            return await stage.find("pods", pod_of(instance_id)) is not None

        await until(is_created)
        await node.wait(pod_of(instance_id), "ImagePullBackOff", "Back-off pulling image")
        await until_status(conn, instance_id, "failed")

    failed = await get(conn, instance_id)
    assert failed.error_code == "STARTUP_FAILED"
    assert "Back-off pulling image" in (failed.error or "")


# reconciliation


async def test_a_planted_orphan_is_removed_with_its_service_and_secret(
    conn: Any, database: str, runtime: KubernetesRuntime, stage: Stage, node: Node, here: Graphs
):
    """R-02: seen by two passes, then gone: the pod and everything that belongs to it."""
    await runtime.ensure(make_spec(4711))

    await a_pass(conn, database, "reconciliation")
    assert await stage.find("pods", pod_of(4711)) is not None, "one pass is not enough"
    done = await a_pass(conn, database, "reconciliation")

    assert done.fields["orphaned_pods_cleaned"] == 1
    assert await stage.left(pod_of(4711)) == {"pods": False, "services": False, "secrets": False}


async def test_a_newborn_pod_survives(
    conn: Any, database: str, runtime: KubernetesRuntime, stage: Stage, node: Node, here: Graphs
):
    """A pod whose row nobody can see yet is left alone until it is old."""
    here.min_age = timedelta(minutes=5)
    await runtime.ensure(make_spec(4711))

    for _ in range(3):
        await a_pass(conn, database, "reconciliation")

    assert await stage.find("pods", pod_of(4711)) is not None


async def test_an_instance_whose_pod_is_gone_fails(
    conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
):
    """R-03: UNEXPECTED_TERMINATION, and the message names the pod."""
    gone, kept = [await running_instance(conn, database, mapping_id) for _ in range(2)]
    await stage.api.delete(stage.api.path("secrets", pod_of(gone)))  # and with it everything that it owns

    async def is_gone() -> bool:
        return not any((await stage.left(pod_of(gone))).values())

    await until(is_gone)
    await a_pass(conn, database, "reconciliation")

    failed = await get(conn, gone)
    assert (failed.status, failed.error_code) == ("failed", "UNEXPECTED_TERMINATION")
    assert pod_of(gone) in (failed.error or "")
    assert await status(conn, kept) == "running"


async def test_an_instance_whose_pod_alone_was_deleted_fails(
    conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
):
    """R-03: the Service and the Secret that are left do not hide that there is no pod."""
    instance_id = await running_instance(conn, database, mapping_id)
    await stage.api.delete(stage.api.path("pods", pod_of(instance_id)))

    async def is_gone() -> bool:
        return await stage.find("pods", pod_of(instance_id)) is None

    await until(is_gone)
    await a_pass(conn, database, "reconciliation")

    failed = await get(conn, instance_id)
    assert (failed.status, failed.error_code) == ("failed", "UNEXPECTED_TERMINATION")
    assert pod_of(instance_id) in (failed.error or "")
    assert await stage.left(pod_of(instance_id)) == {"pods": False, "services": True, "secrets": True}


async def test_an_instance_whose_pod_has_failed_is_drift(
    conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
):
    """R-04: running in the database, failed in the cluster."""
    instance_id = await running_instance(conn, database, mapping_id)
    await node.end(pod_of(instance_id), 137, "OOMKilled")

    done = await a_pass(conn, database, "reconciliation")

    failed = await get(conn, instance_id)
    assert done.fields["status_drift_fixed"] == 1
    assert (failed.status, failed.error_code) == ("failed", "OOM_KILLED")


async def test_ten_orphans_of_which_two_cannot_be_deleted(
    conn: Any, database: str, runtime: KubernetesRuntime, stage: Stage, node: Node, here: Graphs, undeletable: Any
):
    """The example of document 000: 10 detected, 8 cleaned, 2 failures; the next pass tries those again."""
    numbers = range(1001, 1011)
    for number in numbers:
        await runtime.ensure(make_spec(number))
    await a_pass(conn, database, "reconciliation")

    async with undeletable(pod_of(1003), pod_of(1007)):
        first = await a_pass(conn, database, "reconciliation")
        counted = [await tally(conn, f"orphaned_pods_{name}") for name in ("detected", "cleaned", "cleanup_failures")]
    again = await a_pass(conn, database, "reconciliation")

    assert counted == [10, 8, 2]
    assert (first.fields["orphaned_pods_cleaned"], again.fields["orphaned_pods_cleaned"]) == (8, 2)
    assert await stage.names("pods") == []


async def test_an_outage_of_the_api_server_fails_nothing(
    conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs, outage: Any, outage_seconds: float
):
    """Unknown is not empty: no instance fails while the API server is away, and a start goes on afterwards."""
    running = [await running_instance(conn, database, mapping_id) for _ in range(2)]
    starting = await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))

    async with worker(database):
        async with outage():
            give_up, passes = time.monotonic() + outage_seconds, 0
            while passes < 3 or time.monotonic() < give_up:
                passes += 1
                for name in ("reconciliation", "instance_orchestration", "resource_monitor"):
                    await a_pass(conn, database, name)
            during = [await status(conn, instance_id) for instance_id in (*running, starting)]
        await until_status(conn, starting, "running")
    done = await a_pass(conn, database, "reconciliation")

    assert during[:2] == ["running", "running"]
    assert during[2] in ("waiting_for_snapshot", "starting")
    assert done.fields["missing_pods_handled"] == 0
    assert [await status(conn, instance_id) for instance_id in (*running, starting)] == ["running"] * 3


# crashes: the executor of a worker is killed with SIGKILL, and the next attempt goes on

POINTS = ("kubernetes.secret_created", "kubernetes.service_created", "kubernetes.pod_created")


@pytest.mark.parametrize("point", POINTS if EVERYTHING else POINTS[:1])
async def test_a_worker_that_is_killed_while_it_creates_leaves_one_of_everything(
    conn: Any, mapping_id: int, stage: Stage, node: Node, here: Graphs, dying_worker: Any, point: str
):
    """The next attempt makes what is missing."""
    instance_id = await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))

    async with dying_worker(point):
        await until_status(conn, instance_id, "running")

    assert all((await stage.left(pod_of(instance_id))).values())
    assert await stage.names("pods") == [pod_of(instance_id)]


@pytest.mark.skipif(
    not EVERYTHING, reason="slow: HOLDFAST_TEST_EVERYTHING=1 runs it; tests of the runtime die at the same point"
)
async def test_a_worker_that_is_killed_while_it_deletes_leaves_nothing(
    analyst: Client, conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs, dying_worker: Any
):
    """Killed between the pod and its other objects."""
    instance_id = await running_instance(conn, database, mapping_id)
    here.longest_delete = timedelta(0)
    asked = await analyst.delete(f"/api/instances/{instance_id}")
    assert asked.status_code == 202, asked.text

    async with dying_worker("kubernetes.pod_deleted"):
        await until_status(conn, instance_id, None)

    assert await stage.left(pod_of(instance_id)) == {"pods": False, "services": False, "secrets": False}


@pytest.mark.skipif(
    not EVERYTHING, reason="slow: HOLDFAST_TEST_EVERYTHING=1 runs it; tests of the runtime die at the same point"
)
async def test_a_worker_that_is_killed_while_it_resizes_finds_the_new_limits(
    analyst: Client, conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs, dying_worker: Any
):
    """Killed after the API server has accepted the limits: the next attempt sees that it is done."""
    instance_id = await running_instance(conn, database, mapping_id)
    uid = (await node.pod(pod_of(instance_id)))["metadata"]["uid"]
    asked = await analyst.put(f"/api/instances/{instance_id}/memory", json={"memory_gb": 3})
    assert asked.status_code in (200, 202), asked.text

    async def is_resized() -> bool:
        return (await get(conn, instance_id)).memory_mb == 3072

    async with dying_worker("kubernetes.resize_sent"):
        await until(is_resized)

    pod = await node.pod(pod_of(instance_id))
    assert pod["metadata"]["uid"] == uid, "it was not restarted"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] in ("3Gi", "3072Mi")
