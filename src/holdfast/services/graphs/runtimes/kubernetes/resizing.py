"""Change the limits of a running pod through its `resize` subresource (Kubernetes 1.33 and newer). Used by `runtime.resize`.

The API server accepts new limits; then the node enacts them, defers them (not enough room at the moment) or declares that it
never can. Only what the node has enacted counts. A resize that cannot be done is taken back, so that nothing has changed.
"""

from __future__ import annotations

import asyncio
import enum
import time
from typing import TYPE_CHECKING, Any, Final

from lightkube.resources.core_v1 import Pod, PodResize

from holdfast.crashpoints import crashpoint
from holdfast.services.graphs.runtimes.interface import Unknown
from holdfast.services.graphs.runtimes.kubernetes.cluster import Cluster, Refused
from holdfast.services.graphs.runtimes.kubernetes.names import CONTAINER
from holdfast.services.graphs.runtimes.kubernetes.phases import container_status
from holdfast.services.graphs.runtimes.kubernetes.quantities import are_equal

if TYPE_CHECKING:
    from lightkube.models.core_v1 import Pod as AnyPod
    from lightkube.models.core_v1 import ResourceRequirements

# The server has no such subresource, an admission policy forbids it, or the node does not support it.
IMPOSSIBLE: Final = frozenset({400, 403, 404, 405, 422})
POLL_SECONDS: Final = 0.5


class Resize(enum.Enum):
    """What became of new limits."""

    DONE = "the node has enacted them"
    PENDING = "the node has not decided yet, or puts them off"
    IMPOSSIBLE = "the node can never enact them"


async def resize(cluster: Cluster, pod: AnyPod, wanted: dict[str, Any], seconds: float) -> bool:
    """Give this pod these requests and limits. False: it needs a restart, and nothing has changed."""
    name, before = _name(pod), asked(pod)
    if not has(before, wanted):
        try:
            pod = await _send(cluster, name, wanted)
        except Refused as refused:
            if refused.code in IMPOSSIBLE:
                return False
            raise Unknown(f"cannot resize pod {name}: {refused}") from refused
        crashpoint("kubernetes.resize_sent")
    give_up = time.monotonic() + seconds
    while (outcome := outcome_of(pod, wanted)) is Resize.PENDING:
        if time.monotonic() > give_up:
            raise Unknown(f"the node of pod {name} has not resized it within {seconds:g} s", POLL_SECONDS)
        await asyncio.sleep(POLL_SECONDS)
        found = await cluster.get(Pod, name)
        if found is None:
            return False
        pod = found
    if outcome is Resize.IMPOSSIBLE:
        await _take_back(cluster, pod)
    return outcome is Resize.DONE


async def _send(cluster: Cluster, name: str, resources: dict[str, Any]) -> AnyPod:
    change = {"spec": {"containers": [{"name": CONTAINER, "resources": resources}]}}
    return await cluster.patch(PodResize, name, change)


async def _take_back(cluster: Cluster, pod: AnyPod) -> None:
    """Ask for what the node has."""
    container = container_status(pod)
    enacted = container.resources if container is not None else None
    if enacted is None:
        return
    try:
        await _send(cluster, _name(pod), {"requests": enacted.requests, "limits": enacted.limits})
    except Refused as refused:
        raise Unknown(f"cannot take back the resize of pod {_name(pod)}: {refused}") from refused


def outcome_of(pod: AnyPod, wanted: dict[str, Any]) -> Resize:
    """What the pod says of its newest limits. Pure."""
    generation = pod.metadata.generation if pod.metadata else None
    for condition in (pod.status.conditions if pod.status else None) or ():
        of_now = condition.observedGeneration is None or generation is None or condition.observedGeneration >= generation
        if condition.type == "PodResizePending" and condition.status == "True" and of_now:
            return Resize.IMPOSSIBLE if condition.reason == "Infeasible" else Resize.PENDING
    if pod.status is not None and pod.status.resize == "Infeasible":  # until 1.32
        return Resize.IMPOSSIBLE
    if pod.status is not None and pod.status.phase in ("Failed", "Succeeded"):
        return Resize.IMPOSSIBLE
    container = container_status(pod)
    return Resize.DONE if container is not None and has(container.resources, wanted) else Resize.PENDING


def asked(pod: AnyPod) -> ResourceRequirements | None:
    """What the pod's spec asks for. Pure."""
    return next((each.resources for each in (pod.spec.containers if pod.spec else ()) if each.name == CONTAINER), None)


def has(resources: ResourceRequirements | None, wanted: dict[str, Any]) -> bool:
    """Whether these are the wanted requests and limits. Pure."""
    if resources is None:
        return False
    return are_equal(resources.requests, wanted["requests"]) and are_equal(resources.limits, wanted["limits"])


def _name(pod: AnyPod) -> str:
    assert pod.metadata is not None
    assert pod.metadata.name is not None
    return pod.metadata.name
