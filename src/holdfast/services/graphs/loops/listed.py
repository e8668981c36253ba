"""What a runtime has, in the order of the instances, so that it can be compared page by page without a second copy. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from holdfast.services.graphs.runtimes.interface import Observed


class Listed:
    """A list of a runtime, which it sorts in place: the pass keeps no second copy. It remembers with one byte for each object
    whether an instance was asked for."""

    def __init__(self, seen: list[Observed]) -> None:
        seen.sort(key=attrgetter("instance_id"))
        self._seen = seen
        self._asked = bytearray(len(self._seen))

    def __len__(self) -> int:
        return len(self._seen)

    def of(self, instance_id: int) -> list[Observed]:
        """Everything of this instance."""
        found = []
        at = bisect_left(self._seen, instance_id, key=attrgetter("instance_id"))
        while at < len(self._seen) and self._seen[at].instance_id == instance_id:
            self._asked[at] = 1
            found.append(self._seen[at])
            at += 1
        return found

    def of_start(self, instance_id: int, start_token: str) -> Observed | None:
        """What this start of an instance has."""
        return next((one for one in self.of(instance_id) if one.start_token == start_token), None)

    def rest(self) -> Iterator[Observed]:
        """Everything of instances that nobody asked for."""
        return (one for one, asked in zip(self._seen, self._asked, strict=True) if not asked)
