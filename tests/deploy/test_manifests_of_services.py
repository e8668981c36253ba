"""The manifests run every service: a worker for each kind, and graph pods where the settings, rights and policies agree."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import pytest

from deploy_paths import containers, documents, named
from holdfast.catalog import kind_modules
from holdfast.distribution import VERSION
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.services.ingestion.settings import IngestionSettings
from holdfast.settings import Settings, settings_class

S = TypeVar("S", bound=Settings)

OVERLAYS = ["overlays/demo", "overlays/small", "overlays/production"]
MANAGERS = {"app": ["control-plane", "scheduler", "control-worker"]}


@pytest.fixture(params=OVERLAYS)
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An overlay, with the settings of its control plane in the environment."""
    for name, value in named(request.param, "ConfigMap", "control-plane-config")["data"].items():
        monkeypatch.setenv(name, value)
    return str(request.param)


def test_every_kind_has_a_worker(folder: str) -> None:
    """A job of a kind that no worker runs would wait forever."""
    imported = []
    for _, _, container in containers(folder):
        words = container.get("args", [])
        if words[:1] == ["worker"]:
            imported += [following for word, following in itertools.pairwise(words) if word == "--import"]

    assert sorted(imported) == sorted(kind_modules())


def test_graph_pods_are_started_where_the_manifests_allow_it(folder: str) -> None:
    given = _settings(GraphsSettings)
    options = given.kubernetes_options()
    plane = named(folder, "Deployment", "control-plane")["spec"]["template"]["spec"]["containers"][0]
    account = named(folder, "ServiceAccount", str(options.service_account))

    assert given.graph_runtime == "kubernetes"
    assert options.image == plane["image"] == f"holdfast:{VERSION}", "graph pods and the control plane have one version"
    assert account["metadata"]["namespace"] == options.namespace
    assert named(folder, "Namespace", options.namespace)
    assert named(folder, "Role", "graph-manager")["metadata"]["namespace"] == options.namespace


def test_graph_pods_report_to_the_control_plane(folder: str) -> None:
    """By the name and port of its Service, over http, which the runtime must allow."""
    given = _settings(GraphsSettings)
    service = named(folder, "Service", "control-plane")
    meta, port = service["metadata"], service["spec"]["ports"][0]["port"]
    space = named(folder, "Namespace", given.kubernetes_namespace)

    assert given.graph_report_url == f"http://{meta['name']}.{meta['namespace']}.svc:{port}"
    assert given.kubernetes_options().plain_http
    callers = _policy(folder, "control-plane", "holdfast")["ingress"][0]["from"]
    assert {"namespaceSelector": {"matchLabels": {"holdfast.dev/may-call": "control-plane"}}} in callers
    assert space["metadata"]["labels"]["holdfast.dev/may-call"] == "control-plane"


def test_graph_pods_can_be_reached_by_those_that_manage_them_and_by_nobody_else(folder: str) -> None:
    port = [{"protocol": "TCP", "port": KubernetesOptions(image="").port}]
    out = _policy(folder, "allow-graphs", "holdfast")
    into = _policy(folder, "graph-instances", "holdfast-graphs")["ingress"]

    assert _apps(out["podSelector"]) == MANAGERS
    assert out["egress"][0]["ports"] == port
    assert out["egress"][0]["to"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "holdfast-graphs"}
    assert len(into) == len(into[0]["from"]) == 1
    assert _apps(into[0]["from"][0]["podSelector"]) == MANAGERS
    assert into[0]["ports"] == port
    assert set(MANAGERS["app"]) <= set(_apps(_policy(folder, "allow-https-out", "holdfast")["podSelector"])["app"])


def test_uploads_are_where_the_control_plane_and_the_workers_reach_them(folder: str) -> None:
    readers = {
        name
        for name, _, container in containers(folder)
        if {"configMapRef": {"name": "control-plane-config"}} in container.get("envFrom", ())
    }

    assert "://" in _settings(IngestionSettings).ingestion_to, "a folder of a pod is not shared"
    assert {"control-plane", "control-worker"} <= readers


def test_the_control_worker_is_drained_one_pod_at_a_time(folder: str) -> None:
    deployment = named(folder, "Deployment", "control-worker")["spec"]
    budget = named(folder, "PodDisruptionBudget", "control-worker")["spec"]

    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": deployment["selector"]["matchLabels"]}}
    if folder == "overlays/demo":
        assert deployment["replicas"] == 1
    else:
        scaler = named(folder, "ScaledObject", "control-worker-scaler")["spec"]
        assert "replicas" not in deployment, "KEDA manages them"
        assert (scaler["scaleTargetRef"]["name"], scaler["minReplicaCount"]) == ("control-worker", 1)


def _policy(folder: str, name: str, namespace: str) -> dict[str, Any]:
    found = [
        one["spec"]
        for one in documents(folder)
        if (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) == ("NetworkPolicy", name, namespace)
    ]
    assert len(found) == 1, name
    return dict(found[0])


def _apps(selector: dict[str, Any]) -> dict[str, list[str]]:
    return {one["key"]: one["values"] for one in selector["matchExpressions"] if one["operator"] == "In"}


def _settings(part: type[S]) -> S:
    found = settings_class()()
    assert isinstance(found, part)
    return found
