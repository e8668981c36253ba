"""The settings of the runtime `kubernetes`, as a part of the settings of graphs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from holdfast.environment import names
from holdfast.errors import UsageError
from holdfast.services.graphs.runtimes.kubernetes.options import Address, KubernetesOptions, Route
from holdfast.settings import Settings

NAME: Final = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
DOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
FIXED_IMAGE: Final = re.compile(r"(@sha256:[0-9a-f]{64}|:(?!latest$)[\w][\w.-]{0,127})$")


class KubernetesSettings(Settings):
    """Where the cluster is and what pods of graph servers look like."""

    kubernetes_namespace: str = Field(default="default", pattern=NAME, description="Namespace of the pods of graph servers.")
    kubernetes_installation: str = Field(
        default="holdfast",
        pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$",
        description="Name of this installation: the label app.kubernetes.io/instance and the prefix of its objects' names. "
        "Installations that share a namespace need different ones.",
    )
    kubernetes_image: str | None = Field(
        default=None,
        description="Image that runs `holdfast graph-server`. It needs a tag other than latest, or a digest.",
    )
    kubernetes_image_pull_policy: str = Field(
        default="IfNotPresent", pattern=r"^(Always|IfNotPresent|Never)$", description="As in a Pod."
    )
    kubernetes_image_pull_secrets: str = Field(default="", description="Secrets to pull the image with, comma separated.")
    kubernetes_kubeconfig: Path | None = Field(
        default=None,
        json_schema_extra=names(standard=("KUBECONFIG",)),
        description="File with the access to the cluster. Default: the service account of the pod, or ~/.kube/config.",
    )
    kubernetes_context: str | None = Field(default=None, description="Context of the kubeconfig. Default: its current one.")
    kubernetes_service_account: str | None = Field(
        default=None,
        description="Service account of the pods, if it gives them access to buckets. Default: none, and pods get no token.",
    )
    kubernetes_run_as_user: int | None = Field(
        default=65532, ge=1, description="User id of the graph server; set it to `null` where the cluster assigns one."
    )
    kubernetes_node_selector: dict[str, str] = Field(
        default_factory=dict, description='Labels of the nodes that may run graph servers, as JSON: {"pool": "graphs"}.'
    )
    kubernetes_tolerations: list[dict[str, Any]] = Field(
        default_factory=list, description="Tolerations of the pods, as JSON in the form of a Pod."
    )
    kubernetes_environment: dict[str, str] = Field(
        default_factory=dict,
        description='More environment variables of the graph server, as JSON: {"AWS_REGION": "eu-west-1"}.',
    )
    kubernetes_environment_secret: str | None = Field(
        default=None,
        pattern=DOMAIN,
        description="Secret whose keys become environment variables, such as the keys of a bucket.",
    )
    kubernetes_address: Address = Field(
        default="service",
        description="How Holdfast reaches a graph server: by the name of its `service`, the IP of its `pod`, or its `route`.",
    )
    kubernetes_cluster_domain: str = Field(default="cluster.local", pattern=DOMAIN, description="DNS domain of the cluster.")
    kubernetes_route: Route = Field(
        default="none",
        description="Whether each graph server gets a host name outside of the cluster, by `ingress` or `httproute`.",
    )
    kubernetes_domain: str | None = Field(
        default=None, pattern=DOMAIN, description="Domain of those host names: holdfast-graph-7.<domain>."
    )
    kubernetes_tls: bool = Field(
        default=False, description="Whether those host names have certificates: https instead of http."
    )
    kubernetes_tls_secret: str | None = Field(
        default=None,
        pattern=DOMAIN,
        description="Secret with a certificate for *.<domain>, for an ingress without a default one.",
    )
    kubernetes_ingress_class: str | None = Field(default=None, pattern=DOMAIN, description="Class of the ingresses.")
    kubernetes_gateway: str | None = Field(
        default=None,
        pattern=r"^([a-z0-9][-a-z0-9]*/)?[a-z0-9][-.a-z0-9]*$",
        description="Gateway of the HTTP routes, as `name` or `namespace/name`.",
    )
    kubernetes_calls_per_second: float = Field(
        default=20.0, gt=0, le=1000, description="Maximum number of calls to the API server per second and process."
    )
    kubernetes_burst: int = Field(
        default=40, ge=1, le=10_000, description="How many calls may be sent at once before that limit."
    )
    kubernetes_unschedulable_seconds: float = Field(
        default=300.0, ge=0, description="How long a pod may wait for a node before its instance fails with STARTUP_FAILED."
    )
    kubernetes_force_delete_seconds: float = Field(
        default=300.0,
        ge=30,
        description="How long after its end is due a pod of a lost node is deleted without waiting for the node.",
    )

    def kubernetes_options(self) -> KubernetesOptions:
        """The options of the runtime; `UsageError` if they contradict each other."""
        if not self.kubernetes_image:
            raise UsageError(
                "the runtime kubernetes has no image; set HOLDFAST_KUBERNETES_IMAGE, such as registry/holdfast:1.2.3"
            )
        if not FIXED_IMAGE.search(self.kubernetes_image):
            raise UsageError(
                f"HOLDFAST_KUBERNETES_IMAGE={self.kubernetes_image!r} is not fixed; add a tag other than latest, or a digest"
            )
        if self.kubernetes_route != "none" and not self.kubernetes_domain:
            raise UsageError(f"HOLDFAST_KUBERNETES_ROUTE={self.kubernetes_route} needs HOLDFAST_KUBERNETES_DOMAIN")
        if self.kubernetes_route == "httproute" and not self.kubernetes_gateway:
            raise UsageError("HOLDFAST_KUBERNETES_ROUTE=httproute needs HOLDFAST_KUBERNETES_GATEWAY")
        if self.kubernetes_address == "route" and self.kubernetes_route == "none":
            raise UsageError("HOLDFAST_KUBERNETES_ADDRESS=route needs HOLDFAST_KUBERNETES_ROUTE")
        return KubernetesOptions(
            image=self.kubernetes_image,
            namespace=self.kubernetes_namespace,
            installation=self.kubernetes_installation,
            kubeconfig=self.kubernetes_kubeconfig,
            context=self.kubernetes_context,
            image_pull_policy=self.kubernetes_image_pull_policy,
            image_pull_secrets=tuple(one.strip() for one in self.kubernetes_image_pull_secrets.split(",") if one.strip()),
            service_account=self.kubernetes_service_account,
            run_as_user=self.kubernetes_run_as_user,
            node_selector=self.kubernetes_node_selector,
            tolerations=tuple(self.kubernetes_tolerations),
            environment=self.kubernetes_environment,
            environment_secret=self.kubernetes_environment_secret,
            plain_http=self.plain_http,
            address=self.kubernetes_address,
            cluster_domain=self.kubernetes_cluster_domain,
            route=self.kubernetes_route,
            domain=self.kubernetes_domain,
            tls=self.kubernetes_tls,
            tls_secret=self.kubernetes_tls_secret,
            ingress_class=self.kubernetes_ingress_class,
            gateway=self.kubernetes_gateway,
            calls_per_second=self.kubernetes_calls_per_second,
            burst=self.kubernetes_burst,
            unschedulable_seconds=self.kubernetes_unschedulable_seconds,
            force_delete_seconds=self.kubernetes_force_delete_seconds,
        )
