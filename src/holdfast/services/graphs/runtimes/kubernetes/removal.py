"""Delete the objects of an instance, and confirm that they are gone. Used by `runtime.remove` and `runtime.ensure`.

Objects are found by their labels, of every kind: what a crash left behind is found too. Each is deleted by its uid, so an
object that took its name in the meantime stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from lightkube.core.resource import Resource

from holdfast.crashpoints import crashpoint
from holdfast.services.graphs.runtimes.interface import Unknown
from holdfast.services.graphs.runtimes.kubernetes.cluster import Cluster, Refused
from holdfast.services.graphs.runtimes.kubernetes.objects import Marked, marked, selector
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.telemetry.log import log

POLL_SECONDS: Final = 0.5
# The Secret owns the others and goes last: as long as it is there, it is known that something is left.
ORDER: Final = ("Pod", "HTTPRoute", "Ingress", "Service", "Secret")


class Removal:
    """Finds and deletes objects of every kind that this runtime makes."""

    def __init__(self, cluster: Cluster, options: KubernetesOptions, kinds: Sequence[type[Resource]]) -> None:
        self._cluster, self._options = cluster, options
        self._kinds = {kind.__name__: kind for kind in sorted(kinds, key=lambda kind: ORDER.index(kind.__name__))}

    async def remove(self, instance_id: int, chosen: Callable[[Marked], bool]) -> bool:
        """Delete the chosen objects of an instance, and wait a little until none is left. False: deletion has begun."""
        give_up = time.monotonic() + self._options.remove_seconds
        if not await self._delete_all(filter(chosen, await self.find(instance_id))):
            return True
        while any(map(chosen, await self.find(instance_id))):
            if time.monotonic() >= give_up:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def find(self, instance_id: int | None, kinds: Iterable[str] = ORDER) -> list[Marked]:
        """The objects of an instance, or of all, without their content. Complete, or `Unknown`."""
        found: list[Marked] = []
        for name in kinds:
            if name in self._kinds:
                which = selector(self._options.installation, instance_id)
                part, _ = await self._cluster.list_all(self._kinds[name], which, self._mark(name), metadata_only=True)
                found.extend(part)
        return found

    def _mark(self, kind: str) -> Callable[[Any], Marked | None]:
        return lambda item: marked(kind, item.metadata, self._options.installation)

    async def _delete_all(self, objects: Iterable[Marked]) -> int:
        """Delete each of them; how many there were."""
        number = 0
        for each in objects:
            await self._delete(each)
            number += 1
            if each.kind == "Pod":
                crashpoint("kubernetes.pod_deleted")
        return number

    async def _delete(self, each: Marked) -> None:
        forced = is_overdue(each, self._cluster.now, self._options.force_delete_seconds)
        if each.deleted_at is not None and not forced:
            return
        if forced:
            log.warning("kubernetes_pod_forced", pod=each.name, instance=each.instance_id)
        try:
            await self._cluster.delete(self._kinds[each.kind], each.name, uid=each.uid, grace=0 if forced else None)
        except Refused as refused:
            raise Unknown(f"cannot delete {each.kind} {each.name}: {refused}") from refused


def is_overdue(each: Marked, now: datetime | None, seconds: float) -> bool:
    """Whether a pod should have been gone this long ago: its node is lost and will not confirm. Pure.

    A graph server writes only to its own volume, so one that still runs on a node that nobody reaches does no harm.
    """
    return (
        each.kind == "Pod"
        and each.deleted_at is not None
        and now is not None
        and ((now - each.deleted_at).total_seconds() > seconds)
    )
