"""An instance as Kubernetes objects: from a spec to manifests. Pure; tests check them against the schemas of Kubernetes.

The Secret is made first and owns the others, so deleting it deletes everything of the instance, and what a crash leaves behind
always has an owner. The Pod is made last: once it exists, everything that it needs exists.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

from holdfast.services.graphs.runtimes.interface import InstanceSpec
from holdfast.services.graphs.runtimes.kubernetes import names, objects
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions

Manifest = dict[str, Any]

GRACE_SECONDS: Final = 30
PLAN_LIMIT: Final = 512 * 1024  # bytes of a plan in a Secret, which may have 1 MiB; a larger one is fetched over HTTP
PLAN_FOLDER: Final = "/etc/holdfast"
DATA_FOLDER: Final = "/data"
GATEWAY_GROUP: Final = "gateway.networking.k8s.io"


def secret(spec: InstanceSpec, options: KubernetesOptions) -> Manifest:
    """What only this graph server may know: its bearer secret, and its plan unless that is too large."""
    data = {"secret": _encoded(spec.secret)}
    if plan_is_in_secret(spec):
        data["plan.json"] = _encoded(spec.plan.to_json())
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(spec, options),
        "type": "Opaque",
        "immutable": True,
        "data": data,
    }


def service(spec: InstanceSpec, options: KubernetesOptions, owner_uid: str) -> Manifest:
    """A stable name for the graph server of this start, and of no other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, options, owner_uid),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,  # a graph server that loads, or could not, says so itself
            "selector": {
                names.INSTALLATION: options.installation,
                names.INSTANCE_ID: str(spec.instance_id),
                names.START_TOKEN: spec.start_token,
            },
            "ports": [{"name": "http", "port": options.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def pod(spec: InstanceSpec, options: KubernetesOptions, owner_uid: str) -> Manifest:
    """The graph server. It never restarts: its graph is loaded once, and a new start is a decision of the control plane."""
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if options.run_as_user is not None:
        security |= {"runAsUser": options.run_as_user, "runAsGroup": options.run_as_user, "fsGroup": options.run_as_user}
    body: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "containers": [_container(spec, options)],
        "volumes": [
            {"name": "data", "emptyDir": {"sizeLimit": f"{disk_mb(spec)}Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "plan", "secret": {"secretName": _name(spec, options), "defaultMode": 0o440}},
        ],
    }
    if options.service_account:
        # Access to buckets may come from the identity of the service account, and then its token is needed.
        body |= {"serviceAccountName": options.service_account, "automountServiceAccountToken": True}
    if options.image_pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.node_selector:
        body["nodeSelector"] = dict(options.node_selector)
    if options.tolerations:
        body["tolerations"] = [dict(each) for each in options.tolerations]
    metadata = _metadata(spec, options, owner_uid)
    # A pod without a controller is not replaced: its node must not be removed by the cluster autoscaler.
    metadata["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def resources(memory_mb: int, cpu: float) -> Manifest:
    """Memory: request = limit, so the node really has it. CPU: the limit is twice the request (facts of document 000)."""
    memory = f"{memory_mb}Mi"
    return {"requests": {"memory": memory, "cpu": _cores(cpu)}, "limits": {"memory": memory, "cpu": _cores(2 * cpu)}}


def ingress(spec: InstanceSpec, options: KubernetesOptions, owner_uid: str) -> Manifest:
    """The graph server under a host name of its own."""
    backend = {"service": {"name": _name(spec, options), "port": {"name": "http"}}}
    rule = {
        "host": host(options, spec.instance_id),
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }
    body: Manifest = {"rules": [rule]}
    if options.ingress_class:
        body["ingressClassName"] = options.ingress_class
    if options.tls:
        tls: Manifest = {"hosts": [rule["host"]]}
        body["tls"] = [tls | ({"secretName": options.tls_secret} if options.tls_secret else {})]
    metadata = _metadata(spec, options, owner_uid)
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": body}


def http_route(spec: InstanceSpec, options: KubernetesOptions, owner_uid: str) -> Manifest:
    """The same for a Gateway, which has the certificates."""
    namespace, _, gateway = (options.gateway or "").rpartition("/")
    parent = {"name": gateway} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": f"{GATEWAY_GROUP}/v1",
        "kind": "HTTPRoute",
        "metadata": _metadata(spec, options, owner_uid),
        "spec": {
            "parentRefs": [parent],
            "hostnames": [host(options, spec.instance_id)],
            "rules": [{"backendRefs": [{"name": _name(spec, options), "port": options.port}]}],
        },
    }


def host(options: KubernetesOptions, instance_id: int) -> str:
    """The host name of an instance outside of the cluster."""
    return f"{objects.object_name(options.installation, instance_id)}.{options.domain}"


def address(options: KubernetesOptions, instance_id: int, pod_ip: str | None) -> str | None:
    """Where callers reach the graph server; None as long as that is unknown."""
    if options.address == "pod":
        shown = f"[{pod_ip}]" if pod_ip and ":" in pod_ip else pod_ip
        return f"http://{shown}:{options.port}" if shown else None
    if options.address == "route":
        return f"http{'s' if options.tls else ''}://{host(options, instance_id)}"
    name = objects.object_name(options.installation, instance_id)
    return f"http://{name}.{options.namespace}.svc.{options.cluster_domain}:{options.port}"


def plan_is_in_secret(spec: InstanceSpec) -> bool:
    """Whether the plan fits into the Secret; otherwise the graph server fetches it from the callback URL."""
    return len(spec.plan.to_json().encode()) <= PLAN_LIMIT


def disk_mb(spec: InstanceSpec) -> int:
    """Disk for the database and the files that it is loaded from: max(10, 1.2 × size + 5) GiB."""
    return max(10 * 1024, math.ceil(1.2 * spec.plan.size_bytes / 2**20) + 5 * 1024)


def _container(spec: InstanceSpec, options: KubernetesOptions) -> Manifest:
    """The program, its environment, its limits and its probes."""
    health = {"path": "/health", "port": "http"}
    return {
        "name": names.CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.image_pull_policy,
        "args": ["graph-server"],
        "env": _environment(spec, options),
        "envFrom": [{"secretRef": {"name": options.environment_secret}}] if options.environment_secret else [],
        "ports": [{"name": "http", "containerPort": options.port, "protocol": "TCP"}],
        "resources": resources(spec.memory_mb, spec.cpu),
        "resizePolicy": [{"resourceName": name, "restartPolicy": "NotRequired"} for name in ("cpu", "memory")],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "startupProbe": {"httpGet": health, "periodSeconds": 5, "failureThreshold": 30},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {"httpGet": health, "periodSeconds": 10, "failureThreshold": 3, "timeoutSeconds": 5},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod
            {"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": True},
        ],
    }


def _environment(spec: InstanceSpec, options: KubernetesOptions) -> list[Manifest]:
    """What `holdfast graph-server` reads. The secret comes from the Secret, so it is not in the manifest of the Pod."""
    values = {
        "HOLDFAST_GRAPH_HOST": "0.0.0.0",  # noqa: S104 - the address of the pod; other pods must reach it
        "HOLDFAST_GRAPH_PORT": str(options.port),
        "HOLDFAST_GRAPH_DATA_DIR": DATA_FOLDER,
        "HOLDFAST_GRAPH_MEMORY_MB": str(spec.memory_mb),
        "TMPDIR": "/tmp",  # noqa: S108 - a volume of the pod
        "HOME": DATA_FOLDER,
    }
    if spec.callback_url:
        values["HOLDFAST_GRAPH_CALLBACK_URL"] = spec.callback_url
        values["HOLDFAST_PLAIN_HTTP"] = str(options.plain_http).lower()
    if plan_is_in_secret(spec):
        values["HOLDFAST_GRAPH_PLAN"] = f"{PLAN_FOLDER}/plan.json"
    elif spec.callback_url:
        values["HOLDFAST_GRAPH_PLAN_URL"] = f"{spec.callback_url.rstrip('/')}/plan"
    token = {"secretKeyRef": {"name": _name(spec, options), "key": "secret"}}
    own = [{"name": name, "value": value} for name, value in (dict(options.environment) | values).items()]
    name = {"fieldRef": {"fieldPath": "metadata.name"}}
    return [
        *own,
        {"name": "HOLDFAST_GRAPH_SECRET", "valueFrom": token},
        {"name": "HOLDFAST_GRAPH_POD_NAME", "valueFrom": name},
    ]


def _metadata(spec: InstanceSpec, options: KubernetesOptions, owner_uid: str | None = None) -> Manifest:
    found: Manifest = {
        "name": _name(spec, options),
        "namespace": options.namespace,
        "labels": objects.labels(options.installation, spec),
        "annotations": {names.OWNER: spec.owner, names.LOCATION: spec.plan.location},
    }
    if owner_uid is not None:
        found["ownerReferences"] = [{"apiVersion": "v1", "kind": "Secret", "name": found["name"], "uid": owner_uid}]
    return found


def _name(spec: InstanceSpec, options: KubernetesOptions) -> str:
    return objects.object_name(options.installation, spec.instance_id)


def _cores(cpu: float) -> str:
    return f"{round(cpu * 1000)}m"


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
