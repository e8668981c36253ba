"""A node that a test plays: it binds pods and reports what a kubelet would report, to a real API server or a fake one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kube.access import Access, Api, ApiRefused

Object = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kubelet:
    """One node. Each method is a step of a pod's life."""

    def __init__(self, access: Access, name: str = "node-1") -> None:
        self.api, self.name = Api(access), name

    async def register(self, **more: Any) -> None:
        """Make the node known and ready."""
        node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        try:
            await self.api.create("/api/v1/nodes", node)
        except ApiRefused as refused:
            if refused.code != 409:
                raise
        size = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now(),
            "lastTransitionTime": now(),
        }
        status = {"capacity": size, "allocatable": size, "conditions": [ready], **more}
        await self.api.merge(f"/api/v1/nodes/{self.name}/status", {"status": status})

    async def pod(self, name: str) -> Object:
        found: Object = await self.api.get(self.api.path("pods", name))
        return found

    async def bind(self, name: str) -> Object:
        """Take a pod, as the scheduler decides it."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": self.name},
        }
        await self.api.create(self.api.path("pods", f"{name}/binding"), binding)
        return await self.pod(name)

    async def run(self, name: str, *, ip: str = "127.0.0.1", resources: bool = True) -> Object:
        """The container has started; it is not ready."""
        return await self._running(name, ready=False, ip=ip, resources=resources)

    async def ready(self, name: str, *, ip: str = "127.0.0.1", resources: bool = True) -> Object:
        """The readiness probe has succeeded."""
        return await self._running(name, ready=True, ip=ip, resources=resources)

    async def _running(self, name: str, *, ready: bool, ip: str, resources: bool) -> Object:
        pod = await self.pod(name)
        if not pod["spec"].get("nodeName"):
            pod = await self.bind(name)
        state = {"running": {"startedAt": now()}}
        status = self._container(pod, state, ready=ready, resources=resources)
        body = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "127.0.0.1", "startTime": now()}
        return await self.report(name, **body, conditions=_conditions(ready), containerStatuses=[status])

    async def wait(self, name: str, reason: str, message: str) -> Object:
        """The container cannot start yet: ImagePullBackOff and its kin."""
        pod = await self.bind(name)
        state = {"waiting": {"reason": reason, "message": message}}
        statuses = [self._container(pod, state, ready=False, resources=False)]
        return await self.report(name, phase="Pending", conditions=_conditions(False), containerStatuses=statuses)

    async def unschedulable(self, name: str, since: str | None = None) -> Object:
        """No node takes the pod, as the scheduler reports it."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
        return await self.report(name, phase="Pending", conditions=[condition | {"lastTransitionTime": since or now()}])

    async def end(self, name: str, code: int, reason: str = "Error", message: str = "") -> Object:
        """The container has ended."""
        pod = await self.pod(name)
        ended = {"exitCode": code, "reason": reason, "message": message, "startedAt": now(), "finishedAt": now()}
        status = self._container(pod, {"terminated": ended}, ready=False, resources=True)
        phase = "Failed" if code else "Succeeded"
        return await self.report(name, phase=phase, conditions=_conditions(False), containerStatuses=[status])

    async def evict(self, name: str) -> Object:
        """The node was short of memory and ended the pod."""
        message = "The node was low on resource: memory."
        return await self.report(name, phase="Failed", reason="Evicted", message=message, conditions=_conditions(False))

    async def enact(self, name: str) -> Object:
        """Give a pod the limits that its spec asks for."""
        return await self.ready(name)

    async def refuse_resize(self, name: str, reason: str = "Infeasible") -> Object:
        """The limits do not fit onto this node: never (Infeasible), or not now (Deferred)."""
        pod = await self.pod(name)
        condition = {
            "type": "PodResizePending",
            "status": "True",
            "reason": reason,
            "message": "Node didn't have enough capacity",
        }
        condition |= {"observedGeneration": pod["metadata"]["generation"], "lastTransitionTime": now()}
        return await self.report(name, conditions=[*_conditions(True), condition])

    async def confirm_deletion(self, name: str) -> None:
        """The container of a pod that is being deleted has ended."""
        pod = await self.pod(name)
        assert pod["metadata"].get("deletionTimestamp"), f"pod {name} is not being deleted"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self.api.delete(self.api.path("pods", name), options | {"preconditions": {"uid": pod["metadata"]["uid"]}})

    async def report(self, name: str, **status: Any) -> Object:
        """Patch the status of a pod."""
        found: Object = await self.api.merge(self.api.path("pods", f"{name}/status"), {"status": status})
        return found

    def _container(self, pod: Object, state: Object, *, ready: bool, resources: bool) -> Object:
        spec = pod["spec"]["containers"][0]
        status: Object = {"name": spec["name"], "image": spec["image"], "imageID": "", "ready": ready, "started": ready}
        status |= {"restartCount": 0, "state": state}
        if resources:
            status["resources"] = spec["resources"]
        return status

    async def close(self) -> None:
        await self.api.close()


def _conditions(ready: bool) -> list[Object]:
    kinds = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return [
        {"type": kind, "status": "True" if value else "False", "lastTransitionTime": now()} for kind, value in kinds.items()
    ]
