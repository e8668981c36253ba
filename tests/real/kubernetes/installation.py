"""The manifests of `deploy/` on a real API server, their pods as processes: what tests of a whole cluster are given.

    async with installed(cluster, server, folder, overlay) as made: …

The secrets, the database roles and the order are those of the how-to. Trino is the server of the other tests.
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
from typing import Any

import duckdb
import httpx2
import psycopg
import yaml
from kube_cluster import KubeCluster
from pod_processes import PodProcesses
from psycopg.conninfo import conninfo_to_dict

import programs
from databases import new_database
from deploy_paths import DEPLOY
from export_factories import TABLES, mapping
from holdfast.database import roles
from kube.access import Access, Api
from trino_server import TrinoServer
from trino_warehouse import warehouse

OVERLAYS = Path(__file__).parent
PLANE = "127.0.7.1"
ROLE = {"X-Use-Case-Id": "analysts"}
PATIENCE = 300.0
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

    cluster: KubeCluster
    api: Api
    node: PodProcesses
    url: str  # of the database, as its owner
    trino: TrinoServer
    plane: httpx2.AsyncClient
    began: float = field(default_factory=time.monotonic)
    seen: dict[str, int] = field(default_factory=dict)
    mapping_id: int = 0

    def say(self, text: str) -> None:
        """A line of the log."""
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", file=sys.__stdout__, flush=True)

    def apply(self, one: dict[str, Any]) -> None:
        root, plural = COLLECTIONS[one["kind"]]
        space = one["metadata"].get("namespace")
        self.cluster.apply(f"{root}/namespaces/{space}/{plural}" if space else f"{root}/{plural}", one)

    def has(self, kind: str) -> bool:
        """Whether the cluster knows the kind: those of KEDA need KEDA."""
        return "keda.sh" not in COLLECTIONS[kind][0] or self.cluster.has_keda

    def secret(self, name: str, **data: str) -> None:
        metadata = {"name": name, "namespace": "holdfast"}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})

    async def token(self, role: str, folder: Path) -> str:
        """A new token with this role."""
        words = ("auth", "token", "create", role, "--role", role, "--reason", "test", "--dsn", self.url, "--output", "json")
        done = await asyncio.to_thread(lambda: programs.run(*words, folder=folder))
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["token"])

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


@asynccontextmanager
async def installed(cluster: KubeCluster, server: str, folder: Path, overlay: str) -> AsyncIterator[Installation]:
    """An overlay of this folder, applied to a cluster: migrated, with tokens, a mapping, and a control plane that answers."""
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
        apply_overlay(made, overlay)
        await stack.enter_async_context(node)
        await install(made, folder)
        yield made


def rendered(overlay: str) -> list[dict[str, Any]]:
    """The objects of an overlay of this folder whose kinds are known here, in the order in which they are applied."""
    text = subprocess.run(["kubectl", "kustomize", OVERLAYS / overlay], check=True, capture_output=True, text=True).stdout
    known = [one for one in yaml.safe_load_all(text) if one["kind"] in COLLECTIONS]
    return sorted(known, key=lambda one: list(COLLECTIONS).index(one["kind"]))


def apply_overlay(made: Installation, overlay: str) -> None:
    """What the how-to says: secrets, then the overlay."""
    objects = [one for one in rendered(overlay) if made.has(one["kind"])]
    for one in objects[: len([one for one in objects if one["kind"] == "Namespace"])]:
        made.apply(one)
    parts = conninfo_to_dict(made.url)
    words = ["--host", f"{parts['host']}:{parts['port']}", "--database", parts["dbname"], "--owner-url", made.url]
    script = [sys.executable, DEPLOY / "scripts/make_secrets.py", *words, "--options", "?sslmode=disable"]
    for one in yaml.safe_load_all(subprocess.run(script, check=True, capture_output=True, text=True).stdout):
        made.secret(one["metadata"]["name"], **one["stringData"])
    made.secret("starburst-credentials", url=made.trino.url, user="export", password="hunter2")
    for one in objects:
        made.apply(one)
    made.say(f"{overlay} applied: {len(objects)} objects")


async def install(made: Installation, folder: Path) -> None:
    """Wait for the migration, make the tokens, and wait until everything is ready."""

    async def migrated() -> bool:
        return bool((await made.list("Job"))[0]["status"].get("succeeded"))

    await made.until(migrated, "job/migrate is complete")
    made.secret("holdfast-tokens", **{role: await made.token(role, folder) for role in ("worker", "autoscaler")})
    made.plane.headers["Authorization"] = f"Bearer {await made.token('admin', folder)}"

    async def answers() -> bool:
        try:
            return (await made.plane.get("/ready")).status_code == 200
        except httpx2.HTTPError:
            return False

    await made.until(answers, "control-plane is ready")
    answer = await made.plane.post("/api/mappings", json=mapping(), headers=ROLE)
    assert answer.status_code == 201, answer.text
    made.mapping_id = int(answer.json()["data"]["id"])


def drop_roles(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for role in roles.ROLES:
            conn.execute(f"DROP OWNED BY holdfast_{role} CASCADE".encode())
            conn.execute(f"DROP ROLE holdfast_{role}".encode())
