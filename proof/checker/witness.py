"""The witness's log: which answers the actors of a schedule got, kept in memory and never in the database.

The system's own log (`holdfast.history`) has what the system believes. Only a log outside can show what the system does
not know: an acknowledged job is gone, a replaced attempt was accepted, two attempts were both told that they hold a
lock.

Every event has two values of one counter: `begun`, taken before the first statement was sent, and `acked`, taken after
the last answer arrived. The event happened between them. The checker concludes only what is certain: if `a.acked <
b.begun`, a came before b; otherwise the order is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

OK, LOST, REFUSED, UNDONE, CANCEL_ASKED = "ok", "lost", "refused", "undone", "cancel asked"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that one actor saw."""

    what: str
    begun: int
    acked: int
    outcome: str = OK
    job: int | None = None
    attempt: str | None = None
    worker: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def before(self, other: Event) -> bool:
        """Whether this certainly came before the other."""
        return self.acked < other.begun


class Witness:
    """The log itself, with the counter that orders it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.exercised: Counter[str] = Counter()
        self._clock = 0

    def tick(self) -> int:
        """The next number of the one counter."""
        self._clock += 1
        return self._clock

    def note(self, what: str, begun: int, outcome: str = OK, **fields: Any) -> Event:
        """Write down that something was acknowledged just now. `detail` takes whatever the columns do not."""
        columns = {name: fields.pop(name) for name in ("job", "attempt", "worker") if name in fields}
        event = Event(what, begun, self.tick(), outcome, detail=fields, **columns)
        self.events.append(event)
        self.exercised[what if outcome == OK else f"{what}: {outcome}"] += 1
        return event

    def of(self, *what: str) -> Iterator[Event]:
        """The events with one of these names, in the order they were acknowledged."""
        return (event for event in self.events if event.what in what)
