"""Autoscaling as it is deployed: `make test-keda`.

A real API server, controller-manager and KEDA with the overlay `small` of `deploy/`. Its pods are processes of our program on
a real Postgres, with the database roles and secrets of the how-to. Trino is the server of the other tests. It prints a log.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import httpx2
import psycopg
import pytest
import pytest_asyncio
import yaml
from keda import KedaCluster
from pod_processes import PodProcesses, parsed
from psycopg.conninfo import conninfo_to_dict

import programs
from databases import new_database
from deploy_paths import DEPLOY
from export_factories import TABLES, mapping
from holdfast.database import roles
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.settings import MaintenanceSettings
from iceberg_tables import end_threads
from kube.access import Access, Api
from maintenance_factories import make_table, read_ids
from trino_server import TrinoServer
from trino_warehouse import UNLOAD, warehouse

pytestmark = pytest.mark.asyncio(loop_scope="module")
OVERLAY = Path(__file__).parent / "overlay"
PLANE = "127.0.7.1"
ROLE = {"X-Use-Case-Id": "analysts"}
PATIENCE = 120.0
MOVES = """
    SELECT h.move, count(*) FROM holdfast.history h JOIN holdfast.jobs j ON j.id = h.job_id WHERE j.kind = 'exports.export'
"""
COLLECTIONS = {
    "Namespace": ("/api/v1", "namespaces"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Job": ("/apis/batch/v1", "jobs"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "ScaledObject": ("/apis/keda.sh/v1alpha1", "scaledobjects"),
    "ScaledJob": ("/apis/keda.sh/v1alpha1", "scaledjobs"),
    "TriggerAuthentication": ("/apis/keda.sh/v1alpha1", "triggerauthentications"),
}


@dataclass
class Installation:
    """The overlay, applied to a cluster."""

    cluster: KedaCluster
    api: Api
    node: PodProcesses
    url: str  # of the database, as its owner
    trino: TrinoServer
    plane: httpx2.AsyncClient
    began: float = field(default_factory=time.monotonic)
    seen: dict[str, int] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """A line of the log."""
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", file=sys.__stdout__, flush=True)

    def apply(self, one: dict[str, Any]) -> None:
        root, plural = COLLECTIONS[one["kind"]]
        space = one["metadata"].get("namespace")
        self.cluster.apply(f"{root}/namespaces/{space}/{plural}" if space else f"{root}/{plural}", one)

    def secret(self, name: str, **data: str) -> None:
        metadata = {"name": name, "namespace": "holdfast"}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})

    async def list(self, kind: str, **labels: str) -> list[dict[str, Any]]:
        root, plural = COLLECTIONS.get(kind, ("/api/v1", kind))
        selector = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}
        found = await self.api.get(f"{root}/namespaces/holdfast/{plural}", **selector)
        return list(found["items"])

    async def replicas(self, name: str = "export-worker") -> int:
        """How many pods the Deployment asks for; the log says when it changes."""
        found = await self.api.get(f"/apis/apps/v1/namespaces/holdfast/deployments/{name}")
        count = int(found["spec"]["replicas"])
        if self.seen.get(name) != count:
            self.say(f"{name}: {self.seen.get(name, '?')} → {count} replicas")
            self.seen[name] = count
        return count

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Wait for a condition, and say when it holds."""
        end = time.monotonic() + PATIENCE
        while not (found := await condition()):
            await self.replicas()
            assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}\n{await self.trouble()}"
            await asyncio.sleep(0.3)
        self.say(what)
        return found

    async def trouble(self) -> str:
        """What an operator would look at."""
        pods = await self.list("pods")
        lines = [f"{one['metadata']['name']}: {one['status']['phase']}" for one in pods]
        for one in pods:
            lines.append(f"--- {one['metadata']['name']}\n{self.node.log(one['metadata']['name'])[-1500:]}")
        keda = "".join(path.read_text()[-3000:] for path in self.cluster.folder.glob("keda-operator.log"))
        return "\n".join([*lines, *self.node.refused[-5:], "--- keda-operator", keda])

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:
            return await (await conn.execute(statement.encode())).fetchall()

    async def states(self, kind: str) -> dict[str, int]:
        return dict(await self.rows(f"SELECT state, count(*) FROM holdfast.jobs WHERE kind = '{kind}' GROUP BY 1"))

    async def snapshot(self, runtime: str) -> int:
        """Ask for a snapshot of three exports."""
        asked = {"mapping_id": self.mapping_id, "runtime": runtime}
        answer = await self.plane.post("/api/snapshots", json=asked, headers=ROLE)
        assert answer.status_code == 202, answer.text
        return int(answer.json()["data"]["snapshot"]["id"])

    async def is_ready(self, snapshot_id: int) -> bool:
        data = (await self.plane.get(f"/api/snapshots/{snapshot_id}")).json()["data"]["snapshot"]
        assert data["status"] not in ("failed", "cancelled"), data
        return bool(data["status"] == "ready")

    mapping_id: int = 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = KedaCluster(tmp_path_factory.mktemp("kube"))
    try:
        made.start()
        made.start_keda()
        yield made
    finally:
        made.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(cluster: KedaCluster, server: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    folder = tmp_path_factory.mktemp("node")
    async with AsyncExitStack() as stack:
        url = stack.enter_context(new_database(server))
        stack.callback(drop_roles, url)
        connection = stack.enter_context(duckdb.connect())
        connection.execute(TABLES)
        trino = await stack.enter_async_context(TrinoServer(warehouse(connection)))
        access = Access(cluster.url, cluster.tokens["admin"], "holdfast", folder / "kubeconfig", cluster.ca_file)
        api = Api(access)
        stack.push_async_callback(api.close)
        client = httpx2.AsyncClient(base_url=f"http://{PLANE}:8080", trust_env=False, timeout=60)
        plane = await stack.enter_async_context(client)
        node = PodProcesses(access, folder, {"control-plane": PLANE})
        made = Installation(cluster, api, node, url, trino, plane)
        apply_overlay(made, url)
        await stack.enter_async_context(node)
        await install(made, folder)
        yield made


def apply_overlay(made: Installation, url: str) -> None:
    """What the how-to says: secrets, then the overlay."""
    rendered = subprocess.run(["kubectl", "kustomize", OVERLAY], check=True, capture_output=True, text=True).stdout
    objects = sorted(yaml.safe_load_all(rendered), key=lambda one: list(COLLECTIONS).index(one["kind"]))
    for one in objects[: len([one for one in objects if one["kind"] == "Namespace"])]:
        made.apply(one)
    parts = conninfo_to_dict(url)
    words = ["--host", f"{parts['host']}:{parts['port']}", "--database", parts["dbname"], "--owner-url", url]
    script = [sys.executable, DEPLOY / "scripts/make_secrets.py", *words, "--options", "?sslmode=disable"]
    for one in yaml.safe_load_all(subprocess.run(script, check=True, capture_output=True, text=True).stdout):
        made.secret(one["metadata"]["name"], **one["stringData"])
    made.secret("starburst-credentials", url=made.trino.url, user="export", password="hunter2")
    for one in objects:
        made.apply(one)
    made.say(f"overlay small applied: {len(objects)} objects")


async def install(made: Installation, folder: Path) -> None:
    """Wait for the migration, make the tokens, and wait until everything is ready."""

    async def migrated() -> bool:
        return bool((await made.list("Job"))[0]["status"].get("succeeded"))

    await made.until(migrated, "job/migrate is complete")
    for role in ("admin", "worker"):
        words = ("auth", "token", "create", role, "--role", role, "--reason", "test", "--dsn", made.url, "--output", "json")
        done = await asyncio.to_thread(lambda words=words: programs.run(*words, folder=folder))
        assert done.returncode == 0, done.stderr
        token = json.loads(done.stdout)["token"]
        if role == "worker":
            made.secret("holdfast-tokens", worker=token)
        else:
            made.plane.headers["Authorization"] = f"Bearer {token}"

    async def answers() -> bool:
        try:
            return (await made.plane.get("/ready")).status_code == 200
        except httpx2.HTTPError:
            return False

    await made.until(answers, "control-plane is ready")

    async def scaled() -> bool:
        found = [*await made.list("ScaledObject"), *await made.list("ScaledJob")]
        conditions = [one.get("status", {}).get("conditions") or [] for one in found]
        return all(any(is_true(each, "Ready") for each in some) for some in conditions)

    await made.until(scaled, "KEDA has read every trigger")
    answer = await made.plane.post("/api/mappings", json=mapping(), headers=ROLE)
    assert answer.status_code == 201, answer.text
    made.mapping_id = int(answer.json()["data"]["id"])


def is_true(condition: dict[str, str], kind: str) -> bool:
    return condition["type"] == kind and condition["status"] == "True"


def drop_roles(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for role in roles.ROLES:
            conn.execute(f"DROP OWNED BY holdfast_{role} CASCADE".encode())
            conn.execute(f"DROP ROLE holdfast_{role}".encode())


# ---------------------------------------------------------------------------------------------------------------------
# Exports: a Deployment from 0 to n and back
# ---------------------------------------------------------------------------------------------------------------------


async def at_zero(made: Installation) -> None:
    async def none() -> bool:
        return await made.replicas() == 0 and not await made.list("pods", app="export-worker")

    await made.until(none, "no export worker is left")


async def test_a_submitted_export_is_not_stranded_when_the_last_worker_is_gone(installed: Installation) -> None:
    """Y-04, E-03: 0 → 1 for the submission, 1 → 0 while Trino works, 0 → 1 for the poll that finds the end."""
    await at_zero(installed)
    installed.trino.hold = True
    snapshot = await installed.snapshot("unload")
    installed.say("one snapshot of three exports is requested; Trino will write the files")

    async def submitted() -> bool:
        return await installed.states("exports.export") == {"submitted": 3}

    await installed.until(submitted, "all three queries run in Trino; no worker holds them")
    await installed.rows(
        "UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() + interval '1 hour' WHERE state = 'submitted' RETURNING 1"
    )
    await at_zero(installed)
    assert await installed.states("exports.export") == {"submitted": 3}
    installed.trino.hold = False
    for query in installed.trino.queries.values():
        query.may_end.set()
    await installed.rows("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE state = 'submitted' RETURNING 1")
    installed.say("Trino has finished; the polls are due")

    await installed.until(lambda: installed.is_ready(snapshot), "the snapshot is ready")
    unloads = [one for one in installed.trino.queries.values() if UNLOAD.search(one.request.sql)]
    assert len(unloads) == 3, "no query was submitted twice"


async def test_running_exports_scale_up_and_none_is_interrupted_on_the_way_to_zero(installed: Installation) -> None:
    """Y-04, Y-05, E-03: 24 exports need three workers; the last one keeps its worker for as long as it runs."""
    await at_zero(installed)
    before, [(last,)] = len(installed.trino.queries), await installed.rows("SELECT coalesce(max(id), 0) FROM holdfast.jobs")
    installed.trino.hold = True
    snapshots = [await installed.snapshot("direct") for _ in range(8)]
    installed.say("8 snapshots of 3 exports are requested; the workers stream the rows")

    async def three() -> bool:
        return await installed.replicas() >= 3

    await installed.until(three, "three workers are asked for")
    kept = await running_query(installed, before)
    release(installed, before, kept)

    async def one_left() -> bool:
        found = await installed.states("exports.export")
        return found.get("running", 0) == 1 and "pending" not in found

    await installed.until(one_left, "one export is left, and runs")
    [(job, attempt)] = await installed.rows(
        "SELECT id, attempt_id FROM holdfast.jobs WHERE kind = 'exports.export' AND state = 'running'"
    )

    async def down_to_one() -> bool:
        return await installed.replicas() == 1

    await installed.until(down_to_one, "down to the one worker that the running export needs")
    end = time.monotonic() + 20  # several cooldown periods of 6 s
    while time.monotonic() < end:
        assert await installed.replicas() == 1, "the worker of a running export was stopped"
        await asyncio.sleep(0.5)
    installed.say("20 s later it still runs, with one worker")
    [(state, same)] = await installed.rows(f"SELECT state, attempt_id FROM holdfast.jobs WHERE id = {job}")
    installed.trino.queries[kept].may_end.set()

    async def all_ready() -> bool:
        return all([await installed.is_ready(one) for one in snapshots])

    await installed.until(all_ready, "all 8 snapshots are ready")
    assert state == "running"
    moves = dict(await installed.rows(f"{MOVES} AND j.id > {last} GROUP BY 1"))
    installed.say(f"what happened to the 24 exports: {moves}; the last one ran as one attempt: {same == attempt}")
    assert not {"rescue", "retry", "fail"} & set(moves), "no export was lost with its pod"
    await at_zero(installed)


async def running_query(made: Installation, before: int) -> str:
    """A query whose rows a worker reads."""

    async def found() -> str | None:
        reads = [one for one in list(made.trino.queries.values())[before:] if one.began and not one.may_end.is_set()]
        return reads[0].id if reads else None

    return str(await made.until(found, "the first exports run"))


def release(made: Installation, before: int, kept: str) -> None:
    """Let every query but one end."""
    made.trino.hold = False
    for query in list(made.trino.queries.values())[before:]:
        if query.id != kept:
            query.may_end.set()


# ---------------------------------------------------------------------------------------------------------------------
# Maintenance: a pod per job
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(installed: Installation) -> Any:
    """Four Iceberg tables of small files, which their owner has written."""
    here: Any = SimpleNamespace(settings=MaintenanceSettings(iceberg_warehouse=str(installed.node.shared / "warehouse")))
    names = [TableRef("default", "sales", f"orders{number}") for number in range(4)]
    for name in names:
        make_table(here, installed.url, files=6, table=name)
    end_threads()
    yield here, names
    end_threads()


async def maintain(made: Installation, table: TableRef) -> int:
    path = f"/api/tables/{table.namespace}/{table.name}/maintenance"
    answer = await made.plane.post(path, json={"actions": ["rewrite_data_files"]})
    assert answer.status_code == 202, answer.text
    return int(answer.json()["data"]["id"])


async def state_of(made: Installation, job: int) -> tuple[str, int]:
    [found] = await made.rows(f"SELECT state, attempt_no FROM holdfast.jobs WHERE id = {job}")
    return str(found[0]), int(found[1])


async def pods_of(made: Installation) -> list[dict[str, Any]]:
    return await made.list("pods", app="maintenance-worker")


def ended(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def ids_in(here: Any, made: Installation, table: TableRef) -> list[int]:
    """The ids in a table. PyIceberg's threads end with the call."""
    try:
        return read_ids(here, made.url, table)
    finally:
        end_threads()


@asynccontextmanager
async def held(made: Installation) -> AsyncIterator[None]:
    """Maintenance pods are scheduled and not started, as while an image is pulled."""
    made.node.held.add("maintenance-worker")
    yield
    made.node.held.clear()


async def test_one_pod_per_job_and_a_surplus_pod_ends_without_work(installed: Installation, tables: Any) -> None:
    """Y-06: three jobs, three pods; one job is cancelled before its pod starts, and that pod ends with `no_work`."""
    here, names = tables
    async with held(installed):
        jobs = [await maintain(installed, name) for name in names[:3]]
        installed.say("three maintenance jobs are requested")

        async def three() -> bool:
            return len(await pods_of(installed)) >= 3

        await installed.until(three, "KEDA has started three Jobs, one for each")
        assert len(await pods_of(installed)) == 3
        answer = await installed.plane.post(f"/api/jobs/{jobs[2]}/cancel", json={"reason": "test"})
        assert answer.status_code < 300, answer.text
        installed.say("one of the jobs is cancelled; the pods start")

    async def done() -> list[dict[str, Any]] | None:
        pods = await pods_of(installed)
        both = [(await state_of(installed, job))[0] for job in jobs[:2]] == ["completed"] * 2
        return pods if both and all(map(ended, pods)) else None

    pods = await installed.until(done, "both jobs are completed, and all pods have ended")
    logs = [parsed(installed.node.log(pod["metadata"]["name"])) for pod in pods]
    taken = [next(line["taken"] for line in log if line["event"] == "keeper_stopped") for log in logs]
    idle = [any(line["event"] == "no_work" for line in log) for log in logs]
    installed.say(f"{len(pods)} pods: {taken.count(1)} ran one job each, {sum(idle)} ended with no_work, all with exit code 0")

    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * len(pods)
    assert sorted(taken)[-3:] == [0, 1, 1]
    assert [not count for count in taken] == idle
    assert [await state_of(installed, job) for job in jobs] == [("completed", 1), ("completed", 1), ("cancelled", 0)]
    assert [ids_in(here, installed, name) for name in names[:3]] == [list(range(60))] * 3


async def test_the_job_of_a_killed_pod_runs_again(installed: Installation, tables: Any) -> None:
    """E-52: SIGKILL in the middle of a commit; Kubernetes does not retry, and KEDA starts a pod for the expired lease."""
    here, names = tables
    before = {pod["metadata"]["name"] for pod in await pods_of(installed)}
    async with await psycopg.AsyncConnection.connect(installed.url) as conn:
        await conn.execute("SELECT FROM holdfast_iceberg.iceberg_tables WHERE table_name = 'orders3' FOR UPDATE")
        job = await maintain(installed, names[3])

        async def waits() -> bool:
            found = await installed.rows(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE iceberg_tables%'"
            )
            return bool(found)

        await installed.until(waits, "the job of a new pod is about to commit")
        [(holder,)] = await installed.rows(
            f"SELECT w.pod FROM holdfast.workers w JOIN holdfast.jobs j ON j.worker_id = w.id WHERE j.id = {job}"
        )
        pod = next(one for one in await pods_of(installed) if one["metadata"]["name"] == holder)
        installed.node.kill(pod)
        installed.say(f"pod {pod['metadata']['name']} is killed")

    async def again() -> bool:
        return await state_of(installed, job) == ("completed", 2)

    await installed.until(again, "another pod has run the job, as its second attempt")
    pods = [one for one in await pods_of(installed) if one["metadata"]["name"] not in before]
    phases = {one["metadata"]["name"]: one["status"]["phase"] for one in pods}
    assert phases[pod["metadata"]["name"]] == "Failed"
    assert ids_in(here, installed, names[3]) == list(range(60))
    made = await installed.list("Job", **{"scaledjob.keda.sh/name": "maintenance-worker"})
    assert [one["status"]["failed"] for one in made if one["status"].get("failed")] == [1], "Kubernetes retries nothing"
