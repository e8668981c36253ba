"""The manifests on a real API server: a server-side dry run admits, validates and defaults each object as a cluster does.

The server has the CRDs of KEDA and of the Prometheus operator, and enforces the Pod Security Standard of the namespaces.
"""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest
from kube_cluster import KubeCluster
from operators import CRDS_PATH, crds_of_keda, crds_of_prometheus

from deploy_paths import DEPLOY, documents

BASES = sorted(str(path.relative_to(DEPLOY)) for path in (DEPLOY / "base").iterdir())


class Cluster:
    """A server that knows every kind of object in `deploy/`."""

    def __init__(self, cluster: KubeCluster) -> None:
        self.cluster, self.kinds = cluster, dict[tuple[str, str], tuple[str, bool]]()

    def collection(self, one: dict[str, Any]) -> str:
        """The path of the collection that an object belongs to, as the server describes its kinds."""
        version, space = one["apiVersion"], one["metadata"].get("namespace", "holdfast")
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, one["kind"]) not in self.kinds:
            for found in json.loads(self.cluster.get(root))["resources"]:
                if "/" not in found["name"]:
                    self.kinds[version, found["kind"]] = found["name"], found["namespaced"]
        plural, namespaced = self.kinds[version, one["kind"]]
        return f"{root}/namespaces/{space}/{plural}" if namespaced else f"{root}/{plural}"

    def dry_run(self, one: dict[str, Any]) -> dict[str, Any]:
        return self.cluster.apply(self.collection(one), one, dryRun="All")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with both namespaces; nothing else is created."""
    cluster = KubeCluster(tmp_path_factory.mktemp("kube"))
    try:
        cluster.start()
        for crd in (*crds_of_keda(), *crds_of_prometheus()):
            cluster.apply(CRDS_PATH, crd)
        made = Cluster(cluster)
        for one in documents("overlays/production"):
            if one["kind"] == "Namespace":
                cluster.apply("/api/v1/namespaces", one)
        cluster.wait_for("/apis/keda.sh/v1alpha1", "/apis/monitoring.coreos.com/v1")
        yield made
    finally:
        cluster.stop()


@pytest.mark.parametrize("folder", ["overlays/demo", "overlays/small", "overlays/production", *BASES])
def test_an_api_server_accepts_every_object(server: Cluster, folder: str) -> None:
    """Y-08: strictly, so that an unknown field is an error."""
    for one in documents(folder):
        made = server.dry_run(one)

        assert made["metadata"]["name"] == one["metadata"]["name"]


def test_a_wrong_object_is_refused(server: Cluster) -> None:
    """The dry run finds what it is for: a field that does not exist, in an object of Kubernetes and in one of KEDA."""
    for kind, name in (("Deployment", "export-worker"), ("ScaledJob", "maintenance-worker")):
        one = next(one for one in documents("overlays/small") if (one["kind"], one["metadata"]["name"]) == (kind, name))
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.dry_run({**one, "spec": {**one["spec"], "replica": 1}})
        assert "spec.replica: field not declared" in refused.value.read().decode()
