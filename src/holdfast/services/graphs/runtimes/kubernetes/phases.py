"""The state of a pod as the phase of its graph server, with one of the seven error codes. Pure.

A `Seen` is what we keep of a pod: a few hundred bytes instead of its whole object, so ten thousand pods fit into a list.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, get_args

from holdfast.services.graphs.runtimes.interface import ErrorCode, Phase
from holdfast.services.graphs.runtimes.kubernetes.names import CONTAINER
from holdfast.services.graphs.runtimes.kubernetes.objects import Marked, marked
from holdfast.services.graphs.runtimes.kubernetes.quantities import megabytes

if TYPE_CHECKING:
    from lightkube.models.core_v1 import ContainerStatus, Pod

CODES: Final[tuple[str, ...]] = get_args(ErrorCode)
MESSAGE_LENGTH: Final = 2000

# Reasons of a waiting container that do not go away by themselves. `ErrImagePull` becomes `ImagePullBackOff` if it persists.
CANNOT_START: Final = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "RunContainerError"}
)
# Reasons of a failed pod whose container never ran: the node refused it.
REFUSED_BY_NODE: Final = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError", "NodePorts", "Preempting")


@dataclass(frozen=True, slots=True)
class State:
    """The phase of a graph server, and why."""

    phase: Phase
    reason: ErrorCode | None = None
    message: str | None = None
    oom: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What we keep of a pod."""

    mark: Marked
    version: int
    state: State
    is_running: bool  # its container, so that it can be asked
    pod_ip: str | None
    memory_limit_mb: int | None
    unschedulable_since: datetime | None

    def state_at(self, now: datetime | None, unschedulable_seconds: float) -> State:
        """The state, now that time has passed: no node took the pod for too long. `now` is the API server's time."""
        since = self.unschedulable_since
        if since is None or now is None or (now - since).total_seconds() < unschedulable_seconds:
            return self.state
        return State("failed", "STARTUP_FAILED", self.state.message)


def seen(pod: Pod, installation: str) -> Seen | None:
    """Read a pod; None if it is not of this installation."""
    mark = marked("Pod", pod.metadata, installation)
    if mark is None:
        return None
    state, since = state_of(pod)
    return Seen(
        mark=mark,
        version=_version(pod),
        state=state,
        is_running=_is_running(container_status(pod)),
        pod_ip=pod.status.podIP if pod.status else None,
        memory_limit_mb=_memory_limit(pod),
        unschedulable_since=since,
    )


def state_of(pod: Pod) -> tuple[State, datetime | None]:
    """The state of a pod, and since when no node takes it."""
    status = pod.status
    if pod.metadata is not None and pod.metadata.deletionTimestamp is not None:
        return State("stopping", message="The pod is being deleted."), None
    if status is None or status.phase is None:
        return State("starting"), None
    if status.phase in ("Failed", "Succeeded"):
        return _ended(pod), None
    if status.phase == "Unknown":
        return State("failed", "UNEXPECTED_TERMINATION", "The node of the pod does not report its state."), None
    stuck = _cannot_start(container_status(pod))
    if stuck is not None:
        return stuck, None
    conditions = {each.type: each for each in status.conditions or ()}
    ready, placed = conditions.get("Ready"), conditions.get("PodScheduled")
    if ready is not None and ready.status == "True":
        return State("running"), None
    if placed is not None and placed.status == "False" and placed.reason == "Unschedulable":
        return State(
            "starting", message=f"Unschedulable: {placed.message or 'no node takes the pod'}"
        ), placed.lastTransitionTime
    return State("starting", message=_waits_for(container_status(pod))), None


def container_status(pod: Pod) -> ContainerStatus | None:
    """The status of the graph server's container, once there is one."""
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return next((each for each in statuses if each.name == CONTAINER), None)


def _ended(pod: Pod) -> State:
    """Why a pod has ended. A graph server never ends by itself, so even success is unexpected."""
    status, container = pod.status, container_status(pod)
    assert status is not None
    ended = container.state.terminated if container is not None and container.state is not None else None
    if ended is not None and ended.reason == "OOMKilled":
        limit = _memory_limit(pod)
        return State("failed", "OOM_KILLED", f"The graph server used more than its {limit} MiB of memory.", oom=True)
    if status.reason is not None and (ended is None or status.reason == "Evicted"):  # the pod itself says why
        code: ErrorCode = "STARTUP_FAILED" if status.reason.startswith(REFUSED_BY_NODE) else "UNEXPECTED_TERMINATION"
        return State("failed", code, _cut(f"{status.reason}: {status.message or 'the pod has ended'}"))
    if ended is None:
        return State("failed", "UNEXPECTED_TERMINATION", _cut(status.message or "The pod has ended."))
    if ended.reason in ("StartError", "ContainerCannotRun", "CreateContainerError"):
        return State("failed", "STARTUP_FAILED", _cut(f"{ended.reason}: {ended.message or 'the container did not start'}"))
    own = reported(ended.message)
    if own is not None:
        return own
    said = f": {ended.message.strip()}" if ended.message and ended.message.strip() else ""
    return State("failed", "UNEXPECTED_TERMINATION", _cut(f"The graph server ended with exit code {ended.exitCode}{said}"))


def reported(text: str | None) -> State | None:
    """What the graph server itself said at its end: a JSON object with `code` and `message`, on the last line that has one."""
    for line in reversed((text or "").splitlines()):
        try:
            said: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and (said.get("code") or said.get("error_code")) in CODES:
            return State(
                "failed",
                said.get("code") or said["error_code"],
                _cut(str(said.get("message") or said.get("error") or "The graph server failed.")),
            )
    return None


def _cannot_start(container: ContainerStatus | None) -> State | None:
    """A container that waits for something that will not come."""
    waiting = container.state.waiting if container is not None and container.state is not None else None
    if waiting is None or waiting.reason not in CANNOT_START:
        return None
    return State("failed", "STARTUP_FAILED", _cut(f"{waiting.reason}: {waiting.message or 'the container cannot start'}"))


def _waits_for(container: ContainerStatus | None) -> str | None:
    waiting = container.state.waiting if container is not None and container.state is not None else None
    return _cut(f"{waiting.reason}: {waiting.message}") if waiting is not None and waiting.message else None


def reason_of(code: str | None) -> ErrorCode:
    """A code that a graph server gave itself."""
    return next((each for each in get_args(ErrorCode) if each == code), "STARTUP_FAILED")


def _is_running(container: ContainerStatus | None) -> bool:
    return container is not None and container.state is not None and container.state.running is not None


def _memory_limit(pod: Pod) -> int | None:
    """The limit that the node has enacted; before it says so, the one that was asked for."""
    container = container_status(pod)
    asked = next((each.resources for each in (pod.spec.containers if pod.spec else ()) if each.name == CONTAINER), None)
    for resources in (container.resources if container is not None else None, asked):
        if resources is not None and resources.limits and "memory" in resources.limits:
            return megabytes(resources.limits["memory"])
    return None


def _version(pod: Pod) -> int:
    """Resource versions of one resource are numbers that grow; anything else counts as the oldest."""
    text = (pod.metadata.resourceVersion if pod.metadata else None) or ""
    return int(text) if text.isdecimal() else 0


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_LENGTH else f"{text[:MESSAGE_LENGTH]}…"
