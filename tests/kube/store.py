"""The objects of a fake API server: versions, changes for watchers, snapshots for pages, and garbage collection.

Every change gets the next version. Watchers read changes after a version; after `compact`, no watch may begin before it.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Store:
    """Everything that exists."""

    objects: dict[Key, Object] = field(default_factory=dict)
    changes: list[tuple[int, str, str, Object]] = field(default_factory=list)  # version, type, plural, object
    version: int = 100
    compacted: int = 100
    shift: timedelta = timedelta()  # of the server's clock
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    snapshots: dict[tuple[int, str, str], list[Object]] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return datetime.now(UTC) + self.shift

    def write(self, kind: str, plural: str, item: Object) -> Object:
        """Store an object as a change of this type."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        key = (plural, item["metadata"].get("namespace", ""), item["metadata"]["name"])
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = item
        self.changes.append((self.version, kind, plural, copy.deepcopy(item)))
        self._wake()
        return item

    def add(self, plural: str, namespace: str, item: Object) -> Object:
        """A new object, with what the server fills in."""
        meta = item["metadata"]
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp(self.now), "generation": 1}
        if namespace:
            meta["namespace"] = namespace
        return self.write("ADDED", plural, item)

    def remove(self, plural: str, item: Object) -> None:
        """The object is gone, and what it owned goes with it."""
        self.write("DELETED", plural, copy.deepcopy(item))
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        """What a controller-manager does in the background: delete objects whose owners are all gone."""
        alive = {item["metadata"]["uid"] for item in self.objects.values()}
        for (plural, _, _), item in list(self.objects.items()):
            owners = item["metadata"].get("ownerReferences", ())
            if owners and not any(owner["uid"] in alive for owner in owners):
                self.delete(plural, item, grace=None)

    def delete(self, plural: str, item: Object, grace: int | None) -> Object:
        """Delete at once, or give a pod on a node the time to end."""
        meta = item["metadata"]
        if plural == "pods" and not self._ends_at_once(item, grace):
            seconds = item["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
            due = timestamp(self.now + timedelta(seconds=seconds))
            if meta.get("deletionTimestamp") is None or due < meta["deletionTimestamp"]:
                item = copy.deepcopy(item)
                item["metadata"] |= {"deletionTimestamp": due, "deletionGracePeriodSeconds": seconds}
                item["metadata"]["generation"] += 1
                return self.write("MODIFIED", plural, item)
            return item
        self.remove(plural, item)
        return item

    @staticmethod
    def _ends_at_once(pod: Object, grace: int | None) -> bool:
        """A pod that no node has, or that has ended, has nothing to wait for."""
        return grace == 0 or not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Failed", "Succeeded")

    def listed(self, plural: str, namespace: str | None) -> list[Object]:
        found = [item for key, item in self.objects.items() if key[0] == plural and namespace in (None, key[1])]
        return sorted(found, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))

    def since(self, version: int, plural: str) -> list[tuple[str, Object]]:
        """Changes after a version."""
        return [(kind, item) for number, kind, which, item in self.changes if number > version and which == plural]

    def compact(self) -> None:
        """Forget history: new watches of an older version are refused, and so are continue tokens. Open watches go on."""
        self.snapshots.clear()
        self.version += 1
        self.compacted = self.version

    def _wake(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        self._notified = asyncio.ensure_future(notify())
