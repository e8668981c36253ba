"""Where the cluster is, what the pods of graph servers look like, and how often the API server may be called.

Made from the settings (`settings.py`), or by tests. A value is checked where it comes from, so this has no checks of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Route = Literal["none", "ingress", "httproute"]
Address = Literal["service", "pod", "route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Everything that the runtime needs to know."""

    image: str
    namespace: str = "default"
    installation: str = "holdfast"
    kubeconfig: Path | None = None
    context: str | None = None
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    run_as_user: int | None = 65532
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_secret: str | None = None
    plain_http: bool = False  # whether graph servers may report over http
    port: int = 8000
    address: Address = "service"
    cluster_domain: str = "cluster.local"
    route: Route = "none"
    domain: str | None = None
    tls: bool = False
    tls_secret: str | None = None
    ingress_class: str | None = None
    gateway: str | None = None
    calls_per_second: float = 20.0
    burst: int = 40
    call_seconds: float = 10.0  # for one answer
    patience_seconds: float = 15.0  # for one call with its retries
    resize_seconds: float = 20.0  # for the node to enact new limits
    remove_seconds: float = 8.0  # for a pod to end before `remove` says that it is not gone yet
    unschedulable_seconds: float = 300.0
    force_delete_seconds: float = 300.0
    page_size: int = 500
