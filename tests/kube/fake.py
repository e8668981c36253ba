"""A fake API server that keeps the protocol of Kubernetes, over real HTTP: `contract.py` compares it with a real one.

It has versions, watches with bookmarks, 410 after compaction, 409, pages with continue tokens, metadata-only lists, graceful
deletion, garbage collection, and the subresources status, binding, resize and log. `fail`, `outage`, `cut_watches` add faults.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from kube.access import Access
from kube.patching import merged
from kube.store import Object, Store

KINDS = {
    ("", "namespaces"): "Namespace",
    ("", "nodes"): "Node",
    ("", "pods"): "Pod",
    ("", "services"): "Service",
    ("", "secrets"): "Secret",
    ("networking.k8s.io", "ingresses"): "Ingress",
    ("gateway.networking.k8s.io", "httproutes"): "HTTPRoute",
}
CLUSTER_WIDE = {"namespaces", "nodes"}
VERSION = "1.36"


class Problem(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after: int | None = None) -> None:
        self.code, self.reason, self.message, self.retry_after = code, reason, message, retry_after

    @property
    def status(self) -> Object:
        meta: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return meta | {"message": self.message, "reason": self.reason, "code": self.code}


@dataclass(frozen=True)
class Target:
    """What a path names."""

    group: str
    plural: str
    namespace: str | None
    name: str
    sub: str

    @property
    def kind(self) -> str:
        return KINDS[self.group, self.plural]

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"


def target_of(path: str) -> Target:
    """Parse /api/v1/… and /apis/<group>/v1/…."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif len(parts) > 2 and parts[0] == "apis" and parts[2] == "v1":
        group, rest = parts[1], parts[3:]
    else:
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    namespace = None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, sub = (*rest, "", "", "")[:3]
    if (group, plural) not in KINDS:
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    return Target(group, plural, "" if plural in CLUSTER_WIDE else namespace, name, sub)


class FakeApi:
    """An ASGI application."""

    def __init__(self, namespace: str) -> None:
        self.store = Store()
        self.token = secrets.token_hex(8)
        self.calls: list[tuple[str, str]] = []  # method and path, of every request
        self.logs: dict[str, str] = {}  # by the name of the pod
        self.usage: dict[str, str] | None = None  # memory by pod, as the metrics API has it; None: there is no such API
        self.quota: str | None = None  # the message with which every Pod is refused
        self._faults: list[Callable[[Request], Response | None]] = []
        self._generation = 0  # watches of an older one end
        self.store.add("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    # faults

    def fail(
        self, times: int, code: int, *, retry_after: int | None = None, match: str = "", method: str = "", message: str = ""
    ) -> None:
        """Answer the next requests (whose path contains `match`) with this status."""
        left = times

        def fault(request: Request) -> Response | None:
            nonlocal left
            if left == 0 or match not in str(request.url) or method not in ("", request.method):
                return None
            left -= 1
            return _problem(Problem(code, "Injected", message or f"injected {code}", retry_after=retry_after))

        self._faults.append(fault)

    def answer(self, match: str, response: Response) -> None:
        """Answer every request whose URL contains `match` with this, whatever it means."""
        self._faults.append(lambda request: response if match in str(request.url) else None)

    def heal(self) -> None:
        self._faults.clear()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Nothing but 503, and every watch is cut."""
        self.fail(10**9, 503)
        self.cut_watches()
        try:
            yield
        finally:
            self.heal()

    def cut_watches(self) -> None:
        self._generation += 1
        self.store._wake()

    # requests

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.calls.append((request.method, request.url.path))
        try:
            response = next((found for fault in self._faults if (found := fault(request)) is not None), None)
            response = response or await self._respond(request)
        except Problem as problem:
            response = _problem(problem)
        response.headers["Date"] = format_datetime(self.store.now, usegmt=True)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise Problem(401, "Unauthorized", "Unauthorized")
        if request.url.path.startswith("/apis/metrics.k8s.io/v1beta1/") and self.usage is not None:
            return JSONResponse({"metadata": {}, "items": [_metrics(*each) for each in self.usage.items()]})
        target = target_of(request.url.path)
        body = json.loads(await request.body() or b"null")
        if request.method == "POST":
            return JSONResponse(self._bind(target, body) if target.sub == "binding" else self._create(target, body), 201)
        if not target.name:
            return self._watch(request, target) if request.query_params.get("watch") else self._list(request, target)
        if target.sub == "log":
            return PlainTextResponse(self._log(request, target))
        item = self._find(target)
        if request.method == "GET":
            return JSONResponse(item)
        if request.method == "PATCH":
            kind = request.headers["content-type"]
            return JSONResponse(self._patch(target, item, body, strategic="strategic" in kind))
        if request.method == "DELETE":
            return JSONResponse(self._delete(target, item, body or {}))
        raise Problem(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _find(self, target: Target) -> Object:
        found = self.store.objects.get((target.plural, target.namespace or "", target.name))
        if found is None:
            raise Problem(404, "NotFound", f'{target.plural} "{target.name}" not found')
        return found

    def _create(self, target: Target, body: Object) -> Object:
        meta = body.get("metadata") or {}
        if target.namespace and ("namespaces", "", target.namespace) not in self.store.objects:
            raise Problem(404, "NotFound", f'namespaces "{target.namespace}" not found')
        if target.kind == "Pod" and self.quota:
            raise Problem(403, "Forbidden", f'pods "{meta["name"]}" is forbidden: {self.quota}')
        body |= {"apiVersion": target.api_version, "kind": target.kind}
        if target.kind == "Pod":  # the others come from the same functions, and a test checks those
            try:
                kubernetes_validate.validate(body, VERSION, strict=False)
            except kubernetes_validate.ValidationError as error:
                raise Problem(422, "Invalid", f'{target.kind} "{meta.get("name")}" is invalid: {error.message}') from error
        if (target.plural, target.namespace or "", meta["name"]) in self.store.objects:
            raise Problem(409, "AlreadyExists", f'{target.plural} "{meta["name"]}" already exists')
        if target.kind == "Pod":
            body["status"] = {"phase": "Pending", "qosClass": qos_class(body)}
        return self.store.add(target.plural, target.namespace or "", body)

    def _bind(self, target: Target, body: Object) -> Object:
        pod = copy.deepcopy(self._find(target))
        if pod["spec"].get("nodeName"):
            raise Problem(409, "Conflict", f"pod {target.name} is already assigned to node {pod['spec']['nodeName']!r}")
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        self.store.write("MODIFIED", "pods", pod)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _patch(self, target: Target, item: Object, body: Object, *, strategic: bool) -> Object:
        changed = merged(item, body, strategic=strategic)
        if target.sub == "status":
            new = copy.deepcopy(item) | {"status": changed.get("status", {})}
        elif target.sub == "resize":
            new = _resized(target, item, changed)
        elif target.sub:
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        else:
            if target.kind == "Pod" and changed["spec"] != item["spec"]:
                fields = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
                raise Problem(422, "Invalid", f'Pod "{target.name}" is invalid: spec: {fields}')
            new = changed | {"status": item.get("status", {})}
        if new == item:
            return item
        return self.store.write("MODIFIED", target.plural, new)

    def _delete(self, target: Target, item: Object, body: Object) -> Object:
        wanted = (body.get("preconditions") or {}).get("uid")
        found = item["metadata"]["uid"]
        if wanted and wanted != found:
            message = f"the UID in the precondition ({wanted}) does not match the UID in record ({found})"
            raise Problem(409, "Conflict", f"Precondition failed: {message}")
        return self.store.delete(target.plural, item, body.get("gracePeriodSeconds"))

    def _log(self, request: Request, target: Target) -> str:
        pod = self._find(target)
        if not pod["spec"].get("nodeName"):
            return ""
        if not pod.get("status", {}).get("containerStatuses"):
            raise Problem(400, "BadRequest", f'container "graph" in pod "{target.name}" is waiting to start: ContainerCreating')
        lines = self.logs.get(target.name, "").splitlines(keepends=True)
        return "".join(lines[-int(request.query_params.get("tailLines", 10**9)) :])

    def _list(self, request: Request, target: Target) -> Response:
        query = request.query_params
        limit, token = int(query.get("limit") or 0), query.get("continue")
        if token:
            given = json.loads(base64.urlsafe_b64decode(token))
            version, (after, which) = given["rv"], json.loads(given["start"])
            items = self.store.snapshots.get((version, target.plural, which))
            if items is None:
                raise Problem(410, "Expired", "The provided continue parameter is too old to display a consistent list result.")
        else:
            version, after, which = self.store.version, 0, secrets.token_hex(4)
            items = [copy.deepcopy(i) for i in self.store.listed(target.plural, target.namespace) if _matches(i, query)]
        meta: Object = {"resourceVersion": str(version)}
        page = items[after : after + limit] if limit else items
        if limit and after + limit < len(items):
            self.store.snapshots[version, target.plural, which] = items
            start = json.dumps([after + limit, which])
            more = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start}).encode()
            meta |= {"continue": base64.urlsafe_b64encode(more).decode(), "remainingItemCount": len(items) - after - limit}
        kind, api = f"{target.kind}List", target.api_version
        if "as=PartialObjectMetadataList" in request.headers.get("accept", ""):
            kind, api = "PartialObjectMetadataList", "meta.k8s.io/v1"
            page = [{"kind": "PartialObjectMetadata", "apiVersion": api, "metadata": item["metadata"]} for item in page] or None
        return JSONResponse({"kind": kind, "apiVersion": api, "metadata": meta, "items": page})

    def _watch(self, request: Request, target: Target) -> Response:
        return StreamingResponse(self._messages(request, target), media_type="application/json")

    async def _messages(self, request: Request, target: Target) -> AsyncIterator[str]:
        query, generation = request.query_params, self._generation
        version = int(query.get("resourceVersion") or self.store.version)
        seconds = float(query.get("timeoutSeconds") or 1800)
        give_up = asyncio.get_running_loop().time() + seconds
        if version < self.store.compacted:
            message = f"too old resource version: {version} ({self.store.compacted})"
            yield _line("ERROR", Problem(410, "Expired", message).status)
            return
        while generation == self._generation:
            for kind, item in self.store.since(version, target.plural):
                if target.namespace in (None, item["metadata"].get("namespace", "")) and _matches(item, query):
                    yield _line(kind, item)
            version = self.store.version
            left = give_up - asyncio.get_running_loop().time()
            if left <= 0:
                if query.get("allowWatchBookmarks"):
                    yield _line("BOOKMARK", _bookmark(target, version))
                return
            async with self.store.changed:
                if self.store.version == version and generation == self._generation:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self.store.changed.wait(), min(left, 0.5))


def _resized(target: Target, item: Object, changed: Object) -> Object:
    """Only requests and limits may change, on a node that reports them, within one QoS class."""
    new = copy.deepcopy(item)
    statuses = {each["name"]: each for each in item.get("status", {}).get("containerStatuses", ())}
    for old, wanted in zip(new["spec"]["containers"], changed["spec"]["containers"], strict=True):
        if item["status"].get("phase") == "Running" and "resources" not in statuses.get(old["name"], {}):
            message = "Pod running on node without support for resize"
            raise Problem(422, "Invalid", f'Pod "{target.name}" is invalid: spec: Forbidden: {message}')
        old["resources"] = wanted["resources"]
    if qos_class(new) != item["status"]["qosClass"]:
        raise Problem(422, "Invalid", f'Pod "{target.name}" is invalid: spec: Invalid value: Pod QOS Class may not change')
    if new != item:
        new["metadata"]["generation"] += 1
    return new


def qos_class(pod: Object) -> str:
    """Guaranteed: requests equal limits for everything. BestEffort: there are none."""
    resources = [each.get("resources") or {} for each in pod["spec"]["containers"]]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    same = all(
        one.get("limits") and {"cpu", "memory"} <= set(one["limits"]) and one.get("requests", one["limits"]) == one["limits"]
        for one in resources
    )
    return "Guaranteed" if same else "Burstable"


def _matches(item: Object, query: Any) -> bool:
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, (query.get("labelSelector") or "").split(",")):
        key, equal, value = part.partition("=")
        if key not in labels or (equal and labels[key] != value.removeprefix("=")):
            return False
    known = {"metadata.name": item["metadata"]["name"], "spec.nodeName": item.get("spec", {}).get("nodeName", "")}
    for part in filter(None, (query.get("fieldSelector") or "").split(",")):
        key, _, value = part.partition("=")
        if known[key] != value.removeprefix("="):
            return False
    return True


def _metrics(name: str, memory: str) -> Object:
    return {"metadata": {"name": name}, "containers": [{"name": "graph", "usage": {"cpu": "5m", "memory": memory}}]}


def _bookmark(target: Target, version: int) -> Object:
    """As a real server sends it: an object of the kind, with nothing but a version."""
    item: Object = {"kind": target.kind, "apiVersion": target.api_version}
    item["metadata"] = {"resourceVersion": str(version), "creationTimestamp": None}
    return item | ({"spec": {"containers": None}, "status": {}} if target.kind == "Pod" else {})


def _line(kind: str, item: Object) -> str:
    return json.dumps({"type": kind, "object": item}) + "\n"


def _problem(problem: Problem) -> Response:
    headers = {"Retry-After": str(problem.retry_after)} if problem.retry_after is not None else {}
    return JSONResponse(problem.status, problem.code, headers)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving_fake(folder: Path, namespace: str = "graphs") -> AsyncIterator[tuple[FakeApi, Access]]:
    """A fake API server on loopback, for the length of the block."""
    fake = FakeApi(namespace)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(fake, lifespan="off", log_level="critical", date_header=False, timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    access = Access(url, fake.token, namespace, folder / "kubeconfig")
    access.write_kubeconfig()
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield fake, access
    finally:
        fake.cut_watches()
        server.should_exit = True
        await task
        listening.close()
