"""The permissions that the runtime needs, as a Role for its namespace. Pure. Used by: the deployment, the how-to, and the tests
against a real API server, which run with nothing more."""

from __future__ import annotations

from typing import Any

from holdfast.services.graphs.runtimes.kubernetes.manifests import GATEWAY_GROUP
from holdfast.services.graphs.runtimes.kubernetes.options import Route


def rules(route: Route = "none") -> list[dict[str, Any]]:
    """What is done with which objects."""
    objects = ["create", "delete", "get", "list"]
    found: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": [*objects, "watch"]},
        {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["services", "secrets"], "verbs": objects},
        {"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]},
    ]
    if route == "ingress":
        found.append({"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": objects})
    if route == "httproute":
        found.append({"apiGroups": [GATEWAY_GROUP], "resources": ["httproutes"], "verbs": objects})
    return found


def role(name: str, namespace: str, route: Route = "none") -> dict[str, Any]:
    """The Role that holds them."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules(route)}
