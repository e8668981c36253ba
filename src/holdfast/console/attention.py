"""What needs attention, most urgent first: the cause in a sentence, a count, a page, and a command. Pure.

Used by: the strip at the top of the overview.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.toolkit.cli.times import counted, took

LONG_WAIT: Final = 300  # seconds
LONG_POLL_LAG: Final = 60
MOST: Final = 5


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the strip."""

    tone: str  # a state whose colour it has
    sentence: str
    page: str
    query: str  # of the page
    command: str
    bulk: str = ""  # a bulk action that helps, with the filter of the query


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts."""

    tiles: Mapping[str, Any]
    facts: Mapping[str, Any]
    workers: Sequence[Mapping[str, Any]]
    kinds: Sequence[Any]
    oldest: Sequence[Mapping[str, Any]]
    loops: Sequence[Any]
    draining: Mapping[str, Any] | None


def attention(seen: Seen) -> list[Item]:
    """Everything that needs attention."""
    return [item for rule in RULES for item in rule(seen)]


def _draining(seen: Seen) -> Iterator[Item]:
    if seen.draining is not None:
        said = seen.draining
        sentence = f"New jobs are refused: drained by {said['actor']}, {said['reason'] or 'no reason given'}"
        yield Item("paused", sentence, "system", "", "holdfast undrain --reason …")


def _stale(seen: Seen) -> Iterator[Item]:
    count = seen.tiles["stale"].count
    if count:
        silent = [one for one in seen.workers if not one["alive"] and one["holds"]]
        who = f"; worker {silent[0]['name']} has been silent for {took(silent[0]['silent_for'])}" if silent else ""
        sentence = f"{counted(count, 'job')} without a live worker{who}"
        yield Item("stale", sentence, "jobs", "cond:stale", "holdfast job list --condition stale", "recover")


def _workers(seen: Seen) -> Iterator[Item]:
    alive = [one for one in seen.workers if one["alive"]]
    waiting = [kind for kind in seen.kinds if kind.waiting and not kind.paused]
    if waiting and not alive:
        yield Item("failed", "No worker is alive, and jobs wait", "workers", "", "holdfast worker run --import your.jobs")
    elif orphans := [kind.kind for kind in waiting if not kind.workers]:
        sentence = f"No live worker runs {', '.join(orphans[:3])}{' and more' if len(orphans) > 3 else ''}"
        yield Item("warning", sentence, "jobs", f"state:pending kind:{orphans[0]}", f"holdfast job list --kind {orphans[0]}")
    commits = sorted({str(one["git_sha"])[:8] for one in alive if one["git_sha"]})
    versions = sorted({str(one["version"]) for one in alive})
    for what, found in (("commits", commits), ("versions", versions)):
        if len(found) > 1:
            yield Item("warning", f"Workers run {len(found)} {what}: {', '.join(found)}", "workers", "", "holdfast worker list")


def _waiting(seen: Seen) -> Iterator[Item]:
    for one in sorted(seen.oldest, key=lambda one: -one["seconds"])[:1]:
        if one["seconds"] > LONG_WAIT:
            sentence = f"The next {one['kind']} has waited for {took(one['seconds'])}"
            yield Item(
                "warning", sentence, "jobs", f"state:pending kind:{one['kind']}", f"holdfast job list --kind {one['kind']}"
            )
    if seen.facts["poll_lag"] > LONG_POLL_LAG:
        sentence = f"A submitted job should have been polled {took(seen.facts['poll_lag'])} ago; engines cancel such queries"
        yield Item("warning", sentence, "jobs", "state:submitted", "holdfast job list --state submitted")


def _quarantined(seen: Seen) -> Iterator[Item]:
    if seen.facts["quarantined"]:
        sentence = f"{counted(seen.facts['quarantined'], 'job')} in quarantine after too many crashes"
        yield Item("failed", sentence, "jobs", "cond:quarantined", "holdfast job list --condition quarantined")


def _locks(seen: Seen) -> Iterator[Item]:
    if seen.facts["left_locks"]:
        sentence = f"{counted(seen.facts['left_locks'], 'lock')} held by jobs that have ended"
        yield Item("warning", sentence, "locks", "", "holdfast lock list")


def _loops(seen: Seen) -> Iterator[Item]:
    for loop in seen.loops:
        if not loop.healthy and not loop.paused:
            sentence = f"{loop.job_name} failed {loop.consecutive_failures} times in a row"
            yield Item("failed", sentence, "periodic", "", "holdfast periodic list")


RULES: Final = (_draining, _stale, _workers, _quarantined, _loops, _locks, _waiting)
