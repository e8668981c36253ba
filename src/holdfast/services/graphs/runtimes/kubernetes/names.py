"""Labels and annotations of our objects, and the names that this runtime logs or can die at."""

from __future__ import annotations

from typing import Final

INSTALLATION: Final = "app.kubernetes.io/instance"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
COMPONENT: Final = "app.kubernetes.io/component"
INSTANCE_ID: Final = "holdfast/instance-id"
START_TOKEN: Final = "holdfast/start-token"  # noqa: S105 - a label
ATTEMPT: Final = "holdfast/attempt"  # the fence token
OWNER: Final = "holdfast/owner"  # an annotation: names of people are no label values
LOCATION: Final = "holdfast/location"  # an annotation: where the files of the snapshot are

CONTAINER: Final = "graph"

CRASH_POINTS: Final[dict[str, str]] = {
    "kubernetes.secret_created": "The Secret of a start exists; its Service, route and Pod do not.",
    "kubernetes.service_created": "The Secret and Service of a start exist; its Pod does not.",
    "kubernetes.pod_created": "The Pod of a start exists, and the database does not know it yet.",
    "kubernetes.pod_deleted": "The deletion of a Pod has begun; its Service and Secret are still there.",
    "kubernetes.resize_sent": "The API server has accepted new limits of a Pod, and the database does not know it yet.",
}

EVENTS: Final[dict[str, str]] = {
    "kubernetes_call_retried": "The API server was overloaded, failed or did not answer; the call is sent again (debug).",
    "kubernetes_watch_interrupted": "The watch of the pods ended with an error; they are listed again.",
    "kubernetes_pod_forced": "A pod was still there long after its deletion; it was deleted without waiting for its node.",
}
