"""The history checker: two logs in, a list of violations out. Called by: the schedules, and tests of other layers.

The system's log is what Postgres has (`records.py`), the witness's log is which answers the actors got (`witness.py`).
Neither is trusted alone. Each invariant is a small function in one of the modules of this folder, with its number in
the reliability reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from proof.checker.attempts import ATTEMPTS
from proof.checker.fairness import FAIR
from proof.checker.orders import ORDERS
from proof.checker.parents import FAMILIES
from proof.checker.records import Execution
from proof.checker.sharing import SHARED
from proof.checker.starts import STARTS

INVARIANTS: Mapping[str, Callable[[Execution], Iterator[str]]] = {**ATTEMPTS, **FAMILIES, **SHARED, **ORDERS, **STARTS, **FAIR}
MOST_SENTENCES = 5  # of one invariant: the first few say it all


class Violation(NamedTuple):
    """An invariant that does not hold, and what shows it."""

    invariant: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.sentence}"


def check(execution: Execution) -> list[Violation]:
    """Everything that is wrong with the execution; empty if nothing is."""
    found = []
    for name, invariant in INVARIANTS.items():
        for count, sentence in enumerate(invariant(execution)):
            if count >= MOST_SENTENCES:
                break
            found.append(Violation(name, sentence))
    return found


# What a run must have met, each at least once, or it proves nothing (I22).
SOMETIMES = (
    "enqueue: plain", "enqueue: locks, wait", "enqueue: locks, reject", "enqueue: locks, both", "enqueue: slot",
    "enqueue: unique", "enqueue: after", "enqueue: UsageError",
    "enqueue: found a twin", "enqueue: undone", "enqueue: LockBusy", "enqueue: Draining", "enqueue: IdempotencyConflict",
    "pipeline",
    "claim: batch", "claim: ahead", "claim: others hold ahead", "claim: not all", "claim: by id", "claim: poll", "claim: chain",
    "beat", "returned", "begin", "begin: lost", "begin by beat", "progress", "progress: lost", "progress: cancel asked",
    "checkpoint", "checkpoint: lost", "checkpoint: cancel asked",
    "plan", "plan: lost", "confirm", "confirm: lost", "adopt", "adopt: lost",
    "resolve: held", "resolve: ended", "resolve: lost",
    "end: complete", "end: submit", "end: snooze", "end: retry", "end: fail", "end: cancel", "end: release",
    "end by finish: lost", "end by finish: undone", "end by finish: refused", "end by plain: undone", "end by chain: undone",
    "cancel", "cancel: refused", "ask to stop", "rerun", "rerun: refused", "recover", "recover: refused", "abort",
    "pause", "drain", "resume",
    "rescue", "crash", "stall", "bury", "shut down", "resign", "overrun", "expire", "claim in vain", "find strays",
    "promote", "wake", "clean", "pass time",
    "overlap", "waited", "move: block", "move: wake", "move: quarantine", "move: rescue", "move: recover",
)  # fmt: skip


def never_exercised(exercised: Counter[str]) -> list[str]:
    """I22: the kinds of events that a run should have met and did not."""
    return [what for what in SOMETIMES if not exercised[what]]
