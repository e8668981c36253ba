"""Graph servers as pods: a Secret, a Service, a Pod and perhaps a route for each instance.

runtime.py    the interface of runtimes: start here        options.py    where the cluster is and what pods look like
manifests.py  an instance as Kubernetes objects (pure)     objects.py    marks of an object, and whose it is (pure)
phases.py     the state of a pod as a phase (pure)         resizing.py   whether a resize has arrived (pure), and the request
cluster.py    calls: bounded, retried, rate limited        watching.py   list-then-watch of the pods
removal.py    deletes objects and confirms that they are gone
retries.py    whether and when to call again (pure)        rate.py       calls per second
rbac.py       the permissions that all this needs          names.py      labels, crash points, events
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import loaded
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions

if TYPE_CHECKING:  # heavy, and an extra
    from holdfast.services.graphs.runtimes.kubernetes.runtime import KubernetesRuntime

RUNTIME = "holdfast.services.graphs.runtimes.kubernetes.runtime"


def open_kubernetes(options: KubernetesOptions) -> KubernetesRuntime:
    """Return a runtime for this cluster. It sends its first request when it is used."""
    runtime: KubernetesRuntime = loaded(RUNTIME, extra="graphs").KubernetesRuntime(options)
    return runtime
