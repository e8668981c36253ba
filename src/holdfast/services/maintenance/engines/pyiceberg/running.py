"""One run of an action: its session, its progress, and how it is cancelled. Called by: the actions of the embedded engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ClaimLost
from holdfast.services.maintenance.engines.interface import Progress, RowsChanged, TableConflict, TableRefused
from holdfast.services.maintenance.engines.pyiceberg.commit import Session


class Cancelled(Exception):
    """The action was cancelled. The engine turns it into `ActionCancelled` with the figures of what was committed."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class Running:
    """One run of an action. `details` returns the figures of what was committed so far."""

    session: Session
    progress: Callable[[Progress], None]
    cancelled: Callable[[], bool]
    now_ms: int
    details: Callable[[], dict[str, Any]] = field(default=_nothing)
    # After these, nothing of the step was committed, so its files can be deleted.
    certain_failures: tuple[type[Exception], ...] = (Cancelled, ClaimLost, RowsChanged, TableConflict, TableRefused)

    def refuse_cancelled(self) -> None:
        """Raise if the action was cancelled."""
        if self.cancelled():
            raise Cancelled

    def watched(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, until the action is cancelled."""
        for item in items:
            self.refuse_cancelled()
            yield item

    def report(self, done: int, total: int, unit: str) -> None:
        """Report progress, and stop if the action was cancelled."""
        self.refuse_cancelled()
        self.progress(Progress(done, total, unit))

    def report_end(self, total: int, unit: str) -> None:
        """Report that all is done. A cancel that comes now is too late."""
        self.progress(Progress(total, total, unit))

    def pause(self, seconds: float) -> None:
        """Wait before a commit is tried again, and stop if the action was cancelled."""
        self.refuse_cancelled()
        time.sleep(seconds)
