"""The runtime `kubernetes`: the graph server of an instance is a pod. Implements `runtimes/interface.py`.

`ensure` creates the objects of a start one by one, in an order in which a crash at any point is repaired by calling it again.
A name that is taken is adopted only if the labels say that the object is of the same start.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import httpx2
from lightkube.core.resource import Resource
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod, Secret, Service
from lightkube.resources.networking_v1 import Ingress

from holdfast.crashpoints import crashpoint
from holdfast.services.graphs.runtimes.interface import InstanceSpec, Observed, Reached, RuntimeFailed, Unknown
from holdfast.services.graphs.runtimes.kubernetes import manifests, resizing
from holdfast.services.graphs.runtimes.kubernetes.cluster import Cluster, Refused
from holdfast.services.graphs.runtimes.kubernetes.names import CONTAINER
from holdfast.services.graphs.runtimes.kubernetes.objects import Marked, Whose, marked, object_name, selector, whose
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.services.graphs.runtimes.kubernetes.phases import Seen, reason_of, seen
from holdfast.services.graphs.runtimes.kubernetes.removal import ORDER, Removal
from holdfast.services.graphs.runtimes.kubernetes.watching import PodWatch
from holdfast.services.graphs.server_status import read_status

R = TypeVar("R", bound=Resource)

HTTPRoute = create_namespaced_resource(manifests.GATEWAY_GROUP, "v1", "HTTPRoute", "httproutes")
ROUTES: Final[dict[str, type[Resource]]] = {"ingress": Ingress, "httproute": HTTPRoute}
PARTS: Final = tuple(kind for kind in ORDER if kind != "Pod")
CREATES_TRIED: Final = 3  # an object that is deleted between its 409 and our look at it
REMOVED_SOON: Final = 1.0
KEPT_TOKENS: Final = 1000


class KubernetesRuntime:
    """Graph servers as pods of one namespace."""

    name: Final = "kubernetes"

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._watch = PodWatch(self._cluster, options.installation)
        route = (ROUTES[options.route],) if options.route != "none" else ()
        self._http: httpx2.AsyncClient | None = None
        self._tokens: dict[str, str] = {}  # of the last starts, by the uid of the pod
        self._removal = Removal(self._cluster, options, (Pod, Service, Secret, *route))

    async def ensure(self, spec: InstanceSpec) -> Observed:
        if not manifests.plan_is_in_secret(spec) and not spec.callback_url:
            raise RuntimeFailed("the plan is too large for a Secret, and there is no callback URL to fetch it from")
        secret = await self._adopt_or_create(Secret, spec, manifests.secret(spec, self._options))
        crashpoint("kubernetes.secret_created")
        owner = str(_metadata(secret).uid)
        await self._adopt_or_create(Service, spec, manifests.service(spec, self._options, owner))
        if self._options.route == "ingress":
            await self._adopt_or_create(Ingress, spec, manifests.ingress(spec, self._options, owner))
        elif self._options.route == "httproute":
            await self._adopt_or_create(HTTPRoute, spec, manifests.http_route(spec, self._options, owner))
        crashpoint("kubernetes.service_created")
        pod = await self._adopt_or_create(Pod, spec, manifests.pod(spec, self._options, owner))
        crashpoint("kubernetes.pod_created")
        self._watch.note(pod)
        found = seen(pod, self._options.installation)
        assert found is not None, "an object that was adopted or created has our labels"
        return self._observed(found)

    async def observe(self) -> list[Observed]:
        # Parts first: a pod that is created while we list is then seen with its parts, and never as missing.
        parts: dict[int, list[Marked]] = defaultdict(list)
        for part in await self._removal.find(None, PARTS):
            parts[part.instance_id].append(part)
        everything = selector(self._options.installation)
        pods, _ = await self._cluster.list_all(Pod, everything, lambda pod: seen(pod, self._options.installation))
        used = await self._cluster.usage(everything) if pods else {}
        for pod in pods:
            parts.pop(pod.mark.instance_id, None)
        seen_now = [replace(self._observed(pod), memory_bytes=used.get(pod.mark.name)) for pod in pods]
        return seen_now + [without_pod(left) for left in parts.values()]

    async def look(self, instance_id: int) -> Observed | None:
        found = self._watch.look(instance_id)
        if found is None:
            pod = await self._get_pod(instance_id)
            found = seen(pod, self._options.installation) if pod is not None else None
        if found is not None and found.mark.instance_id == instance_id:
            return await self._with_load(self._observed(found), found)
        parts = await self._removal.find(instance_id, PARTS)
        return without_pod(parts) if parts else None

    async def reach(self, instance_id: int, start_token: str) -> Reached | None:
        pod = await self._get_pod(instance_id)
        found = seen(pod, self._options.installation) if pod is not None else None
        if found is None or found.mark.start_token != start_token or not found.is_running:
            return None
        address, token = self._observed(found).address, await self._token(found.mark)
        return None if address is None or token is None else Reached(address, token)

    async def resize(self, spec: InstanceSpec, *, memory_mb: int, cpu: float) -> bool:
        pod = await self._get_pod(spec.instance_id)
        found = seen(pod, self._options.installation) if pod is not None else None
        if (
            pod is None
            or found is None
            or whose(found.mark, spec) is not Whose.OURS
            or found.state.phase in ("failed", "stopping")
        ):
            return False
        return await resizing.resize(self._cluster, pod, manifests.resources(memory_mb, cpu), self._options.resize_seconds)

    async def remove(self, instance_id: int, *, start_token: str | None = None) -> bool:
        return await self._removal.remove(instance_id, lambda each: start_token in (None, each.start_token))

    async def logs(self, instance_id: int, tail: int = 200) -> str:
        try:
            return await self._cluster.log(self._name(instance_id), CONTAINER, tail)
        except Refused as refused:
            if refused.code in (400, 404):  # the container has not started, or there is no pod
                return ""
            if refused.code >= 500:  # its node does not answer, which must not keep anybody from failing the instance
                return f"(the log is not available: {refused})\n"
            raise Unknown(f"cannot read the log of instance {instance_id}: {refused}") from refused

    async def close(self) -> None:
        await self._watch.close()
        if self._http is not None:
            await self._http.aclose()
        await self._cluster.close()

    async def _adopt_or_create(self, resource: type[R], spec: InstanceSpec, manifest: manifests.Manifest) -> R:
        """Create an object, or adopt the one that this start has made before."""
        for _ in range(CREATES_TRIED):
            try:
                return await self._cluster.create(resource, manifest)
            except Refused as refused:
                if refused.code != 409:
                    raise RuntimeFailed(self._explained(resource.__name__, refused)) from refused
            found = await self._read(resource, self._name(spec.instance_id))
            if found is not None:
                mark = marked(resource.__name__, _metadata(found), self._options.installation)
                await self._require_ours(resource.__name__, mark, spec)
                return found
        raise Unknown(f"{resource.__name__} {self._name(spec.instance_id)} appears and disappears", REMOVED_SOON)

    async def _require_ours(self, kind: str, mark: Marked | None, spec: InstanceSpec) -> None:
        """Go on only with an object of this start. What an earlier start left is removed first."""
        name, owner = self._name(spec.instance_id), whose(mark, spec)
        if owner is Whose.FOREIGN:
            raise RuntimeFailed(
                f"{kind} {name} exists in namespace {self._options.namespace} and is not of instance {spec.instance_id} "
                f"of installation {self._options.installation!r}; delete it, or choose another HOLDFAST_KUBERNETES_INSTALLATION"
            )
        if owner is Whose.LATER:
            raise RuntimeFailed(f"{kind} {name} is of a later start of instance {spec.instance_id}: this start was replaced")
        if owner is Whose.EARLIER:
            await self._removal.remove(spec.instance_id, lambda each: whose(each, spec) is Whose.EARLIER)
        if owner is not Whose.OURS:
            raise Unknown(f"{kind} {name} is {owner.value}; it is being removed", REMOVED_SOON)

    async def _with_load(self, observed: Observed, pod: Seen) -> Observed:
        """A graph server whose load failed goes on running, is never ready, and says why."""
        if observed.phase != "starting" or observed.address is None or not pod.is_running:
            return observed
        token = await self._token(pod.mark)
        self._http = self._http or httpx2.AsyncClient(trust_env=False)
        said = await read_status(self._http, observed.address, token) if token else None
        if said is None or said.phase != "failed" or said.start_token not in (None, pod.mark.start_token):
            return observed
        return replace(observed, phase="failed", reason=reason_of(said.error_code), message=said.error)

    async def _token(self, mark: Marked) -> str | None:
        """The bearer secret of this start, from its Secret."""
        if mark.uid not in self._tokens:
            found = await self._read(Secret, mark.name)
            owner = marked("Secret", _metadata(found), self._options.installation) if found is not None else None
            data = (found.data if found is not None else None) or {}
            if owner is None or owner.start_token != mark.start_token or "secret" not in data:
                return None
            self._tokens = {mark.uid: base64.b64decode(data["secret"]).decode()} | dict(
                list(self._tokens.items())[:KEPT_TOKENS]
            )
        return self._tokens[mark.uid]

    async def _get_pod(self, instance_id: int) -> Pod | None:
        pod = await self._read(Pod, self._name(instance_id))
        if pod is not None:
            self._watch.note(pod)
        return pod

    async def _read(self, resource: type[R], name: str) -> R | None:
        try:
            return await self._cluster.get(resource, name)
        except Refused as refused:
            raise Unknown(f"cannot read {resource.__name__} {name}: {refused}") from refused

    def _explained(self, kind: str, refused: Refused) -> str:
        """Why an object could not be created, with the fix if we know one."""
        said = f"the API server refused the {kind}: {refused}"
        if refused.code == 404:
            return f"{said}; create namespace {self._options.namespace!r}, or set HOLDFAST_KUBERNETES_NAMESPACE"
        return said

    def _observed(self, pod: Seen) -> Observed:
        state = pod.state_at(self._cluster.now, self._options.unschedulable_seconds)
        return Observed(
            instance_id=pod.mark.instance_id,
            start_token=pod.mark.start_token,
            fence_token=pod.mark.fence_token,
            phase=state.phase,
            created_at=pod.mark.created_at,
            address=manifests.address(self._options, pod.mark.instance_id, pod.pod_ip),
            reason=state.reason,
            message=state.message,
            oom=state.oom,
            memory_limit_mb=pod.memory_limit_mb,
            name=pod.mark.name,
        )

    def _name(self, instance_id: int) -> str:
        return object_name(self._options.installation, instance_id)


def without_pod(parts: Iterable[Marked]) -> Observed:
    """An instance whose pod is gone or was never made, but not its other objects. Pure."""
    newest = max(parts, key=lambda part: (part.fence_token, part.created_at))
    left = ", ".join(sorted({part.kind for part in parts}))
    leaving = any(part.deleted_at is not None for part in parts)
    return Observed(
        instance_id=newest.instance_id,
        start_token=newest.start_token,
        fence_token=newest.fence_token,
        phase="stopping" if leaving else "failed",
        created_at=newest.created_at,
        reason=None if leaving else "UNEXPECTED_TERMINATION",
        message=f"Pod {newest.name} does not exist; left of it: {left}.",
    )


def _metadata(item: Any) -> Any:
    return item.metadata
