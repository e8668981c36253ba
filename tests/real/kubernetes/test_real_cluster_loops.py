"""The loops in a cluster, for five minutes: the overlay `production` on a real API server and controller-manager.

Its pods are processes: two schedulers, the control plane and the workers, with the service accounts and database roles of the
manifests. Graph pods run the real graph server. There is no KEDA here, so each Deployment has the replicas of its manifest.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from installation import PLANE, ROLE, Installation, installed
from kube_cluster import KubeCluster
from pod_processes import parsed
from prometheus_client.parser import text_string_to_metric_families

from holdfast import catalog
from holdfast.schedule.kernel import kernel_loops
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.services.graphs.runtimes.kubernetes.runtime import KubernetesRuntime
from holdfast.settings import settings
from kube.access import Access, Api
from kube.kubelet import Object
from kube.node import ProcessNode
from kube.specs import make_spec

pytest.importorskip("ladybug")
GRAPHS = "holdfast-graphs"
ORPHAN = 4711
WATCHED_SECONDS, STEP_SECONDS = 300.0, 5.0
MIN_AGE = timedelta(seconds=60)  # the default of HOLDFAST_GRAPH_MIN_AGE_SECONDS
QUERY = {"query": "MATCH (c:Customer)-[:OWNS]->(a:Account) WHERE c.id = 7 RETURN c.name, a.number"}
OF_EACH_LOOP = (
    "background_job_execution_total",
    "background_job_execution_duration_seconds_count",
    "background_job_last_success_timestamp_seconds",
    "background_job_health_status",
    "background_job_interval_seconds",
)


class GraphNode(ProcessNode):
    """A node for graph pods; they reach the control plane by its address, because there is no cluster DNS."""

    def __init__(self, access: Access, folder: Path) -> None:
        super().__init__(access, folder)
        self._addresses = iter(range(100, 250))

    async def _value(self, variable: Object, paths: dict[str, Path], name: str) -> str:
        return (await super()._value(variable, paths, name)).replace("//control-plane.holdfast.svc:", f"//{PLANE}:")


@pytest.fixture
async def made(kube: KubeCluster, server: str, tmp_path: Path) -> AsyncIterator[Installation]:
    async with installed(kube, server, tmp_path / "node", "overlay-loops") as found:
        yield found


@pytest.fixture
def graphs(made: Installation, kube: KubeCluster, tmp_path: Path) -> Access:
    """The namespace of graph pods, as an administrator."""
    access = Access(kube.url, kube.tokens["admin"], GRAPHS, tmp_path / "graphs.kubeconfig", kube.ca_file)
    access.write_kubeconfig()
    return access


@pytest.fixture
async def node(graphs: Access, tmp_path: Path) -> AsyncIterator[GraphNode]:
    async with GraphNode(graphs, tmp_path / "graphs") as running:
        yield running


async def test_the_loops_run_for_five_minutes_and_remove_a_planted_orphan(
    made: Installation, graphs: Access, node: GraphNode
) -> None:
    """Z-03: metrics of every loop and no failure; the second pass that may see the orphan removes it, and nothing else."""
    await made.until(lambda: are_ready(made), "every pod is ready")
    instance_id = await running_graph(made)
    await plant_orphan(graphs)
    created = datetime.fromisoformat((await node.pod(pod_of(ORPHAN)))["metadata"]["creationTimestamp"])
    made.say(f"pod {pod_of(ORPHAN)} is planted; no instance has it")
    first, restarts = await scrape(made), restarts_of(made)

    seen, gone_after = await watch(made, graphs)

    expected = {one.name for one in [*kernel_loops(), *catalog.loops(settings())]}
    for metric in OF_EACH_LOOP:
        assert expected <= loops_of(seen, metric), f"{metric} is missing for some loops"
    for name in expected:
        assert successes(seen)[name] > successes(first)[name], f"{name} did not succeed in the five minutes"
    made.say(f"{len(expected)} loops, {sum(successes(seen).values()):g} passes: {dict(successes(seen))}")

    assert gone_after is not None, "the orphan is still there"
    assert await left(graphs) == {plural: [pod_of(instance_id)] for plural in ("pods", "services", "secrets")}
    may_see = [run for run in await passes(made) if run["started_at"] > created + MIN_AGE + timedelta(seconds=1)]
    removed = next(run for run in await passes(made) if run["items"])
    assert removed["started_at"] <= may_see[1]["started_at"], "two passes that may see it are enough"
    figures = (await made.plane.get("/metrics")).text
    counted = [value_of(figures, f"orphaned_pods_{name}_total") for name in ("detected", "cleaned", "cleanup_failures")]
    assert counted == [1, 1, 0]

    assert errors(made) == {"orphaned_pod_detected": 1}
    assert restarts_of(made) == restarts, "no pod was restarted in the five minutes"
    assert await rows_of(made, instance_id) == [["customer 7", "a8"]], "the graph still answers"
    answer = await made.plane.delete(f"/api/instances/{instance_id}")
    assert answer.status_code in (202, 204), answer.text

    async def none_left() -> bool:
        return not any((await left(graphs)).values())

    await made.until(none_left, "the deleted instance has left nothing")


# ---------------------------------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------------------------------


def pod_of(instance_id: int) -> str:
    return f"holdfast-graph-{instance_id}"


async def are_ready(made: Installation) -> bool:
    """Before the schema is migrated, programs end and are restarted."""
    pods = [pod for pod in await made.list("pods") if pod["spec"]["restartPolicy"] == "Always"]
    statuses = [pod["status"].get("containerStatuses") or [{"ready": False}] for pod in pods]
    return bool(pods) and all(status["ready"] for (status,) in statuses)


def restarts_of(made: Installation) -> dict[str, int]:
    return {one.home.name: one.restarts for one in made.node.running.values()}


async def running_graph(made: Installation) -> int:
    """A graph instance from a mapping: exported by the export worker, started by the control worker, running as a pod."""
    asked = {"name": "bank", "mapping_id": made.mapping_id}
    answer = await made.plane.post("/api/instances", json=asked, headers=ROLE)
    assert answer.status_code == 202, answer.text
    instance_id = int(answer.json()["data"]["id"])

    async def runs() -> bool:
        data = (await made.plane.get(f"/api/instances/{instance_id}")).json()["data"]
        assert data["status"] != "failed", data
        return bool(data["status"] == "running")

    await made.until(runs, f"graph instance {instance_id} runs")
    assert await rows_of(made, instance_id) == [["customer 7", "a8"]]
    return instance_id


async def rows_of(made: Installation, instance_id: int) -> Any:
    answer = await made.plane.post(f"/api/instances/{instance_id}/graph/query", json=QUERY)
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]


async def plant_orphan(graphs: Access) -> None:
    """A pod with its service and secret, as the runtime makes them, of an instance that does not exist."""
    options = KubernetesOptions(image="holdfast:0.1.0", namespace=GRAPHS, kubeconfig=graphs.kubeconfig, address="pod")
    runtime = KubernetesRuntime(options)
    try:
        await runtime.ensure(make_spec(ORPHAN))
    finally:
        await runtime.close()


async def watch(made: Installation, graphs: Access) -> tuple[str, float | None]:
    """Scrape for five minutes; no loop fails and all are healthy. The last scrape, and when the orphan was gone."""
    began, gone_after, seen = time.monotonic(), None, ""
    while (now := time.monotonic() - began) < WATCHED_SECONDS:
        seen = await scrape(made)
        assert failures(seen) == {}, f"after {now:.0f} s"
        if gone_after is None and pod_of(ORPHAN) not in (await left(graphs))["pods"]:
            gone_after = now
            made.say("the orphan is gone")
        await asyncio.sleep(STEP_SECONDS)
    made.say(f"no failure in {WATCHED_SECONDS:g} s")
    return seen, gone_after


async def left(graphs: Access) -> dict[str, list[str]]:
    """The objects of graph instances in the namespace of graphs."""
    api = Api(graphs)
    try:
        found = {plural: (await api.get(api.path(plural)))["items"] for plural in ("pods", "services", "secrets")}
    finally:
        await api.close()
    return {plural: sorted(one["metadata"]["name"] for one in items) for plural, items in found.items()}


async def passes(made: Installation) -> list[dict[str, Any]]:
    """The passes of the loop `reconciliation`, oldest first."""
    rows = await made.rows(
        "SELECT json_build_object('started_at', started_at, 'items', items) FROM holdfast.loop_runs "
        "WHERE name = 'reconciliation' AND outcome = 'success' ORDER BY id"
    )
    return [{**row, "started_at": datetime.fromisoformat(row["started_at"])} for (row,) in rows]


# ---------------------------------------------------------------------------------------------------------------------
# Metrics and logs
# ---------------------------------------------------------------------------------------------------------------------


async def scrape(made: Installation) -> str:
    """The metrics of both schedulers, one after the other, as Prometheus reads them."""
    pods = await made.list("pods", app="scheduler")
    assert len(pods) == 2
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        return "\0".join([(await http.get(f"http://{pod['status']['podIP']}:8080/metrics")).text for pod in pods])


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    found = [metric for part in text.split("\0") for metric in text_string_to_metric_families(part)]
    return [(one.name, one.labels, one.value) for metric in found for one in metric.samples]


def loops_of(text: str, metric: str) -> set[str]:
    return {labels["job_name"] for name, labels, _ in samples(text) if name == metric}


def successes(text: str) -> Counter[str]:
    """Passes that succeeded, by loop, in all schedulers together."""
    found = Counter[str]()
    for name, labels, value in samples(text):
        if name == "background_job_execution_total" and labels["status"] == "success":
            found[labels["job_name"]] += int(value)
    return found


def failures(text: str) -> dict[str, str]:
    """What a loop's metrics say about failures."""
    found = {}
    for name, labels, value in samples(text):
        if name == "background_job_execution_total" and labels["status"] == "failed" and value:
            found[labels["job_name"]] = f"{value:g} passes failed"
        if name == "background_job_health_status" and value != 1:
            found[labels["job_name"]] = "not healthy"
    return found


def value_of(text: str, name: str) -> float | None:
    return next((value for found, _, value in samples(text) if found == name), None)


def errors(made: Installation) -> dict[str, int]:
    """Events of level error in the logs of all pods."""
    lines = [line for folder in made.node.folder.iterdir() for line in parsed(made.node.log(folder.name))]
    return dict(Counter(line["event"] for line in lines if line.get("level") == "error"))
