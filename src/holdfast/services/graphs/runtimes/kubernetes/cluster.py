"""Calls to the API server: bounded in time, rate limited and retried. Used by every module here that talks to the cluster.

A call ends with an answer, with `Refused` (a 4xx: the same call is refused again), or with `Unknown` (nobody can tell what
happened). A list is complete or it is `Unknown`.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, TypeVar, cast

import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core import decoders
from lightkube.core.exceptions import ConfigError
from lightkube.core.generic_client import BasicRequest, GenericAsyncClient
from lightkube.core.resource import Resource
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import PodLog

from holdfast.errors import UsageError
from holdfast.services.graphs.runtimes.interface import Unknown
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.services.graphs.runtimes.kubernetes.quantities import memory_of
from holdfast.services.graphs.runtimes.kubernetes.rate import Rate
from holdfast.services.graphs.runtimes.kubernetes.retries import TEMPORARY, delay, parsed_retry_after
from holdfast.telemetry.log import log

T = TypeVar("T")
R = TypeVar("R", bound=Resource)

PodMetrics = create_namespaced_resource("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", verbs=["list"])

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
DENIED: Final = re.compile(r'User "[^"]*" cannot \w+ resource')
DENIED_SECONDS: Final = 5.0
LISTS_TRIED: Final = 3  # a list whose continue token expires begins again
WATCH_SECONDS: Final = 240
SILENCE_SECONDS: Final = 90.0  # the API server sends a bookmark about once a minute


class Refused(Exception):
    """The API server refused a call (4xx): it would refuse it again."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({code} {reason})")
        self.code, self.reason, self.message = code, reason, message

    @property
    def is_denied(self) -> bool:
        """Whether we lack a permission, or our token is not accepted. An API server that has just started denies what it allows
        a moment later, so this is no proof of anything; quotas and admission policies have other messages."""
        return self.code == 401 or (self.code == 403 and DENIED.search(self.message) is not None)


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """One message of a watch: CONNECTED, ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    version: str
    item: R | None = None


class _Version(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - as it is sent


class _Versioned(msgspec.Struct):
    metadata: _Version


class _PageMetadata(_Version):
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    metadata: _PageMetadata
    items: list[msgspec.Raw] | None


class Cluster:
    """One API server and one namespace."""

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        parameters = ConnectionParams(timeout=httpx2.Timeout(options.call_seconds))
        self._http = GenericAsyncClient(parameters, _config(options), namespace=options.namespace, field_manager="holdfast")
        self._rate = Rate(options.calls_per_second, options.burst)
        self._told: tuple[datetime, float] | None = None

    @property
    def now(self) -> datetime | None:
        """The time of the API server, to compare with times that it wrote; None before its first answer."""
        if self._told is None:
            return None
        then, since = self._told
        return then + timedelta(seconds=time.monotonic() - since)

    async def create(self, resource: type[R], manifest: dict[str, Any]) -> R:
        """POST an object."""
        request = self._http.prepare_request("post", resource, obj=_typed(resource, manifest))
        return await self._answer(request, lambda body: _object(body, resource))

    async def get(self, resource: type[R], name: str) -> R | None:
        """GET an object; None if there is none."""
        request = self._http.prepare_request("get", resource, name=name)
        try:
            return await self._answer(request, lambda body: _object(body, resource))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    async def patch(self, resource: type[R], name: str, change: dict[str, Any]) -> R:
        """PATCH an object or subresource with a strategic merge patch."""
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        request = self._http.prepare_request("patch", resource, obj=change, name=name, headers=headers)
        return await self._answer(request, lambda body: _object(body, resource))

    async def delete(self, resource: type[R], name: str, *, uid: str, grace: int | None = None) -> None:
        """DELETE this very object. One of the same name that replaced it stays (409); one that is gone is no error."""
        request = self._http.prepare_request("delete", resource, name=name)
        request.data = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        request.data |= {"propagationPolicy": "Background"} | ({} if grace is None else {"gracePeriodSeconds": grace})
        try:
            await self._answer(request, lambda body: None)
        except Refused as refused:
            if refused.code not in (404, 409):
                raise

    async def list_all(
        self,
        resource: type[R],
        selector: str,
        keep: Callable[[R], T | None],
        *,
        metadata_only: bool = False,
    ) -> tuple[list[T], str]:
        """All objects that the selector matches, reduced by `keep`, with the version of the list. Complete, or `Unknown`."""
        for _ in range(LISTS_TRIED):
            try:
                return await self._pages(resource, selector, keep, metadata_only=metadata_only)
            except Refused as refused:
                if refused.code != 410:
                    raise Unknown(f"cannot list {resource.__name__} objects: {refused}") from refused
        raise Unknown(f"the list of {resource.__name__} objects expired {LISTS_TRIED} times before it was complete")

    async def _pages(
        self, resource: type[R], selector: str, keep: Callable[[R], T | None], *, metadata_only: bool
    ) -> tuple[list[T], str]:
        headers = {"Accept": METADATA_ONLY} if metadata_only else None
        parameters: dict[str, Any] = {"labelSelector": selector, "limit": self._options.page_size}
        found: list[T] = []
        while True:
            request = self._http.prepare_request("list", resource, params=parameters, headers=headers)
            more, version, items = await self._answer(request, lambda body: _page(body, resource))
            found.extend(kept for each in items if (kept := keep(each)) is not None)
            if not more:
                return found, version
            parameters = parameters | {"continue": more}

    async def watch(self, resource: type[R], selector: str, version: str) -> AsyncGenerator[Change[R], None]:
        """Changes after a version, beginning with CONNECTED. Ends when the server ends it; 410 is `Refused`."""
        parameters = {"labelSelector": selector, "resourceVersion": version, "allowWatchBookmarks": "true"}
        parameters["timeoutSeconds"] = str(WATCH_SECONDS)
        request = self._http.prepare_request("list", resource, watch=True, params=parameters)
        request.timeout = httpx2.Timeout(self._options.call_seconds, read=SILENCE_SECONDS)
        await self._rate.turn()
        try:
            response = await self._send(request, stream=True)
            try:
                if response.status_code >= 400:
                    await response.aread()
                    raise _refusal(response)
                yield Change("CONNECTED", version)
                lines = cast("AsyncGenerator[str, None]", response.aiter_lines())
                async with aclosing(lines):
                    async for line in lines:
                        yield _change(line, resource)
            finally:
                await response.aclose()
        except (httpx2.TransportError, msgspec.MsgspecError) as error:
            raise Unknown(f"the watch ended: {_text(error)}") from error

    async def usage(self, selector: str) -> dict[str, int]:
        """Bytes of memory in use by pod, as the metrics API has them. A cluster without it, or whose metrics server is away,
        says nothing: that is no reason to doubt the pods."""
        request = self._http.prepare_request("list", PodMetrics, params={"labelSelector": selector})
        try:
            _, _, found = await self._answer(request, lambda body: decoders.decode_list(body, PodMetrics), patience=0)
            return dict(memory_of(each) for each in found)
        except (Refused, Unknown, LookupError, ValueError):
            return {}

    async def log(self, name: str, container: str, tail: int) -> str:
        """The last lines of a container's log. Sent once: its node may be lost, and then a 5xx is all that there is."""
        parameters = {"container": container, "tailLines": tail}
        request = self._http.prepare_request("get", PodLog, name=name, params=parameters)
        await self._rate.turn()
        try:
            response = await self._send(request)
        except httpx2.TransportError as error:
            raise Unknown(f"the API server does not answer: {_text(error)}") from error
        if response.status_code >= 400:
            raise _refusal(response)
        return response.text

    async def close(self) -> None:
        await self._http.close()  # type: ignore[no-untyped-call]

    async def _answer(self, request: BasicRequest, decode: Callable[[bytes], T], *, patience: float | None = None) -> T:
        """Send a request until there is an answer, or patience ends."""
        give_up = time.monotonic() + (self._options.patience_seconds if patience is None else patience)
        tries = 0
        while True:
            await self._rate.turn()
            try:
                response = await self._send(request)
            except httpx2.TransportError as error:
                problem, wanted = f"the API server does not answer: {_text(error)}", None
            else:
                self._note_time(response)
                if response.status_code < 400:
                    return _decoded(response, decode)
                refused = _refusal(response)
                if refused.is_denied:
                    raise Unknown(
                        f"{refused}; check the token and the role of docs/howto/graphs-on-kubernetes.md", DENIED_SECONDS
                    )
                if refused.code not in TEMPORARY:
                    raise refused
                problem, wanted = str(refused), parsed_retry_after(response.headers.get("Retry-After"))
            wait = delay(tries, random.random(), wanted)  # noqa: S311 - spreads load, protects nothing
            tries += 1
            if time.monotonic() + wait > give_up:
                raise Unknown(f"{request.method} {request.url} failed {tries} times: {problem}", wanted)
            log.debug("kubernetes_call_retried", method=request.method, url=request.url, problem=problem, seconds=wait)
            if wanted is not None:
                self._rate.pause(wait)
            await asyncio.sleep(wait)

    async def _send(self, request: BasicRequest, *, stream: bool = False) -> httpx2.Response:
        built = self._http.build_adapter_request(request)
        response: httpx2.Response = await self._http.send(built, stream=stream)  # type: ignore[no-untyped-call]
        return response

    def _note_time(self, response: httpx2.Response) -> None:
        try:
            self._told = parsedate_to_datetime(response.headers["Date"]), time.monotonic()
        except (KeyError, ValueError):
            return


def _config(options: KubernetesOptions) -> SingleConfig:
    """In the cluster: the pod's service account. Elsewhere: a kubeconfig."""
    try:
        given = KubeConfig.from_file(options.kubeconfig) if options.kubeconfig else KubeConfig.from_env()
        found = given.get(options.context)
    except (ConfigError, OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the access to Kubernetes: {error}; run in the cluster, or set HOLDFAST_KUBERNETES_KUBECONFIG"
        ) from error
    if found is None:
        raise UsageError("the kubeconfig has no current context; set HOLDFAST_KUBERNETES_CONTEXT")
    return found


def _typed(resource: type[R], manifest: dict[str, Any]) -> R:
    made: R = resource.from_dict(manifest)  # type: ignore[attr-defined]
    return made


def _decoded(response: httpx2.Response, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(response.content)
    except msgspec.MsgspecError as error:
        raise Unknown(f"the answer of {response.request.url.path} is not what an API server sends: {error}") from error


def _object(body: bytes, resource: type[R]) -> R:
    """An object with a name. Every field of its model is optional, so other JSON would be decoded too."""
    found: R = decoders.decode_object(body, resource)
    return _named(found)


def _page(body: bytes, resource: type[R]) -> tuple[str | None, str, list[R]]:
    """The continue token, the version and the objects of a page. A list of the metadata of nothing has `null` as its items."""
    page = msgspec.json.decode(body, type=_Page)
    return page.metadata.continue_, page.metadata.resourceVersion, [_object(bytes(item), resource) for item in page.items or ()]


def _named(item: R) -> R:
    metadata: Any = getattr(item, "metadata", None)
    if metadata is None or not metadata.name or not metadata.uid:
        raise msgspec.ValidationError("an object without a name or uid")
    return item


def _refusal(response: httpx2.Response) -> Refused:
    """What the server says. A proxy in between may answer with anything."""
    try:
        status: Any = response.json()
    except ValueError:
        status = None
    if not isinstance(status, dict):
        status = {}
    message = status.get("message") or response.text[:200] or response.reason_phrase
    return Refused(response.status_code, str(status.get("reason") or response.reason_phrase), str(message))


def _change(line: str, resource: type[R]) -> Change[R]:
    """One line of a watch. A bookmark is no complete object: only its version is read."""
    event = decoders.decode_watch_event(line.encode())
    if event.type == "ERROR":
        status = decoders.decode_status(bytes(event.object))
        raise Refused(status.code or 500, status.reason or "", status.message or "the watch ended with an error")
    version = msgspec.json.decode(event.object, type=_Versioned).metadata.resourceVersion
    if event.type == "BOOKMARK":
        return Change(event.type, version)
    return Change(event.type, version, _object(bytes(event.object), resource))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
