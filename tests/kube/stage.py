"""A namespace of an API server, with a node and runtimes: what the tests of the contract are given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.services.graphs.runtimes.kubernetes.runtime import KubernetesRuntime
from kube.access import PATIENCE, Access, Api, ApiRefused
from kube.kubelet import Kubelet

IMAGE = "registry.example.com/holdfast:1.2.3"
Object = dict[str, Any]


@dataclass
class Stage:
    """`admin` may do everything; runtimes have the permissions of `user`."""

    admin: Access
    user: Access
    compact: Callable[[], Awaitable[None]]
    bookmark_seconds: int = 1  # a watch of this length gets a bookmark
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.api, self.kubelet = Api(self.admin), Kubelet(self.admin)
        self.stack.push_async_callback(self.api.close)
        self.stack.push_async_callback(self.kubelet.close)

    def options(self, **more: Any) -> KubernetesOptions:
        usual: Object = {"image": IMAGE, "namespace": self.user.namespace, "kubeconfig": self.user.kubeconfig, "address": "pod"}
        quick: Object = {
            "calls_per_second": 1000.0,
            "burst": 1000,
            "patience_seconds": 5.0,
            "resize_seconds": PATIENCE,
            "remove_seconds": 0.0,
        }
        return KubernetesOptions(**{**usual, **quick, **more})

    def open(self, **more: Any) -> KubernetesRuntime:
        """A runtime that is closed after the test."""
        runtime = KubernetesRuntime(self.options(**more))
        self.stack.push_async_callback(runtime.close)
        return runtime

    async def names(self, plural: str, group: str = "") -> list[str]:
        """The names of all objects of a kind."""
        found = await self.api.get(self.api.path(plural, group=group))
        return [item["metadata"]["name"] for item in found["items"]]

    async def find(self, plural: str, name: str, group: str = "") -> Object | None:
        try:
            found: Object = await self.api.get(self.api.path(plural, name, group))
        except ApiRefused as refused:
            if refused.code == 404:
                return None
            raise
        return found

    async def left(self, name: str) -> dict[str, bool]:
        """Which objects of an instance exist."""
        return {plural: await self.find(plural, name) is not None for plural in ("pods", "services", "secrets")}


async def until(condition: Callable[[], Awaitable[Any]], what: str = "condition") -> Any:
    """Wait until it holds, and return what it returned."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def staged(admin: Access, user: Access, compact: Callable[[], Awaitable[None]], **more: Any) -> AsyncIterator[Stage]:
    stage = Stage(admin, user, compact, **more)
    async with stage.stack:
        await stage.kubelet.register()
        yield stage
