"""The pods of this installation, kept up to date: list, then watch from the version of the list. Used by `runtime.look`.

A job that waits until its graph server is ready asks every second; with hundreds of starts at once that would be hundreds of
calls. A watch costs one connection. What it says is only used while it is connected, and only that a pod exists and how it is:
that there is no pod is always asked of the API server itself. A silent connection counts as broken after 90 s.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from typing import Final

from lightkube.resources.core_v1 import Pod

from holdfast.services.graphs.runtimes.kubernetes.cluster import Change, Cluster, Refused
from holdfast.services.graphs.runtimes.kubernetes.objects import selector
from holdfast.services.graphs.runtimes.kubernetes.phases import Seen, seen
from holdfast.services.graphs.runtimes.kubernetes.retries import delay
from holdfast.telemetry.log import log

GONE: Final = 410
RECONNECT_SECONDS: Final = 0.2


class PodWatch:
    """Call `look` to read; the watch begins with the first call."""

    def __init__(self, cluster: Cluster, installation: str) -> None:
        self._cluster, self._installation = cluster, installation
        self._pods: dict[int, Seen] = {}
        self._version = ""
        self._is_connected = False
        self._task: asyncio.Task[None] | None = None
        self.lists = 0  # how often everything was listed

    @property
    def is_connected(self) -> bool:
        """Whether changes arrive at the moment they happen."""
        return self._is_connected

    def look(self, instance_id: int) -> Seen | None:
        """The pod of an instance, if the watch is connected and knows one."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="kubernetes-pod-watch")
        return self._pods.get(instance_id) if self._is_connected else None

    def note(self, pod: Pod) -> None:
        """A pod as a call has just returned it: the watch may not have said it yet. An older version changes nothing."""
        found = seen(pod, self._installation)
        if found is None:
            return
        known = self._pods.get(found.mark.instance_id)
        if known is None or known.version <= found.version:
            self._pods[found.mark.instance_id] = found

    async def close(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        """List and watch until closed. An error begins again with a list, after a pause that grows."""
        failures = 0
        while True:
            try:
                await self._list()
                while True:
                    await self._follow()
                    failures = 0
                    await asyncio.sleep(RECONNECT_SECONDS)
            except Exception as error:  # whatever it is: until the next list, every look asks the API server itself
                is_gone = isinstance(error, Refused) and error.code == GONE  # our version is too old: changes were missed
                if not is_gone:
                    log.warning("kubernetes_watch_interrupted", problem=f"{type(error).__name__}: {error}")
            await asyncio.sleep(delay(failures, random.random(), None))  # noqa: S311 - spreads load, protects nothing
            failures += 1

    async def _list(self) -> None:
        everything = selector(self._installation)
        pods, self._version = await self._cluster.list_all(Pod, everything, lambda pod: seen(pod, self._installation))
        self._pods = {pod.mark.instance_id: pod for pod in pods}
        self.lists += 1

    async def _follow(self) -> None:
        """One watch, until the server ends it: it does so every few minutes, and the next one goes on from there."""
        changes = self._cluster.watch(Pod, selector(self._installation), self._version)
        try:
            async with aclosing(changes):
                async for change in changes:
                    self._take(change)
        finally:
            self._is_connected = False

    def _take(self, change: Change[Pod]) -> None:
        self._version, self._is_connected = change.version, True
        if change.item is None:
            return
        if change.kind == "DELETED":
            self._forget(change.item)
        else:
            self.note(change.item)

    def _forget(self, pod: Pod) -> None:
        """The pod is gone. Another one may have its name already."""
        gone = seen(pod, self._installation)
        known = self._pods.get(gone.mark.instance_id) if gone else None
        if gone and known and known.mark.uid == gone.mark.uid:
            del self._pods[gone.mark.instance_id]
