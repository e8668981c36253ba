"""A real control plane for the whole run, and a namespace for each test. Nothing is collected without HOLDFAST_TEST_REAL."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("kube.contract", "kube.cases", "kube.scenarios", "kube.pods")

from kube_cluster import KubeCluster  # noqa: E402 - after the assertions are rewritten

from holdfast.services.graphs.runtimes.kubernetes import rbac  # noqa: E402
from kube import fixtures  # noqa: E402
from kube.access import Access, Api, ApiRefused  # noqa: E402
from kube.stage import Stage, staged, until  # noqa: E402
from leaks import replaceable  # noqa: E402

SUITES = {"HOLDFAST_TEST_REAL": "test_real_*.py", "HOLDFAST_TEST_KEDA": "test_keda_*.py"}
collect_ignore_glob = [files for switch, files in SUITES.items() if not os.environ.get(switch)]


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """One control plane for the whole run."""
    cluster = KubeCluster(tmp_path_factory.mktemp("kube"))
    try:
        cluster.start()
        cluster.kill_api_server()  # a new one remembers no history, so that old versions are really gone
        cluster.start_api_server()
        with replaceable(lambda: pid.pid if (pid := cluster.processes.get("kube-apiserver")) else None):
            yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def stage(kube: KubeCluster, tmp_path: Path) -> AsyncIterator[Stage]:
    """A namespace that enforces the Pod Security Standard `restricted`, and a user with the how-to's Role and nothing more."""
    namespace = f"t{os.urandom(4).hex()}"
    admin, user = (
        Access(kube.url, kube.tokens[name], namespace, tmp_path / f"{name}.kubeconfig", kube.ca_file)
        for name in ("admin", "holdfast")
    )
    user.write_kubeconfig()
    api = Api(admin)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    await api.create(f"{rights}/roles", rbac.role("holdfast", namespace, "ingress"))
    await api.create(f"{rights}/rolebindings", binding(namespace))
    await account(api, namespace)

    async def compact() -> None:
        kube.compact()

    try:
        async with staged(admin, user, compact, bookmark_seconds=10) as made:
            yield made
    finally:
        await api.delete(f"/api/v1/namespaces/{namespace}")
        await api.close()


def binding(namespace: str) -> dict[str, object]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "holdfast", "namespace": namespace},
        "subjects": [{"kind": "User", "name": "holdfast", "apiGroup": group}],
        "roleRef": {"kind": "Role", "name": "holdfast", "apiGroup": group},
    }


async def account(api: Api, namespace: str) -> None:
    """Wait for the default service account, which every pod needs."""

    async def is_there() -> bool:
        found = await api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")
        return bool(found["items"])

    await until(is_there)


# What the scenarios need: the application, clients and mappings of `tests/services/graphs`, and ways to break a real server.

_services = Path(__file__).parents[2] / "services"


def _module_of(file: Path) -> Any:
    found = importlib.util.spec_from_file_location(f"fixtures_of_{file.parent.name}", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


_callers, _graphs = _module_of(_services / "conftest.py"), _module_of(_services / "graphs" / "conftest.py")
as_role, ops, analyst = _callers.as_role, _callers.ops, _callers.analyst
here, app, mapping_id = _graphs.here, _graphs.app, _graphs.mapping_id
runtime, node, process_node, dying_worker = fixtures.runtime, fixtures.node, fixtures.process_node, fixtures.dying_worker


@pytest.fixture
def undeletable(stage: Stage) -> Callable[..., AbstractAsyncContextManager[None]]:
    """Names of pods whose deletion the server refuses: an admission policy denies it."""

    @asynccontextmanager
    async def refusing(*names: str) -> AsyncIterator[None]:
        root, name = "/apis/admissionregistration.k8s.io/v1", f"keep-{stage.admin.namespace}"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["DELETE"]}
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [
                {"expression": f"!(oldObject.metadata.name in {json.dumps(names)})", "message": "kept by a policy"}
            ],
        }
        bound = {"policyName": name, "validationActions": ["Deny"]}
        here = {
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.admin.namespace}}}
        }
        await stage.api.create(f"{root}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
        await stage.api.create(f"{root}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": bound | here})

        async def is_enforced() -> bool:
            try:
                await stage.api.call("DELETE", stage.api.path("pods", names[0]), dryRun="All")
            except ApiRefused as refused:
                return "kept by a policy" in str(refused)
            return False

        await until(is_enforced)
        yield
        await stage.api.delete(f"{root}/validatingadmissionpolicybindings/{name}")
        await stage.api.delete(f"{root}/validatingadmissionpolicies/{name}")

        async def is_lifted() -> bool:
            return not await is_enforced()

        await until(is_lifted)

    return refusing


@pytest.fixture
def outage(kube: KubeCluster) -> Callable[[], AbstractAsyncContextManager[None]]:
    """The API server is killed, and started again at the end of the block."""

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        kube.kill_api_server()
        try:
            yield
        finally:
            await asyncio.to_thread(kube.start_api_server)

    return away


@pytest.fixture
def outage_seconds() -> float:
    """Two minutes."""
    return 120.0
