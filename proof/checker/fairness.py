"""Invariants between workers that prefetch jobs, and between jobs of different priority. Called by: `check.py`.

The numbers are those of decision 0018. They are written here once more on purpose: a checker that asked `DurationEstimates` and
`Lanes` what they permit would accept whatever they do. Called by: the checker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from proof.checker.records import Execution
from proof.checker.witness import Event

Violations = Iterator[str]

SHORT = 0.05  # seconds: jobs of a kind that take no longer may be held ahead, as many as the lanes finish in that time
LONGEST_WAIT = 1.0  # seconds: what has waited for longer is returned by the next beat
EVERY_KIND = 0.5  # seconds: a worker asks for every kind that it knows at least so often
ADAPTS = 0.75  # one short job makes a worker believe that they are at most so much shorter


def waiting_jobs_are_shared(execution: Execution) -> Violations:
    """While a worker with a free lane asks for work and gets less than it asks for, no other worker keeps jobs waiting for
    a lane beyond what prefetching permits:

    - not more jobs of long kinds than it has lanes. A kind is long for a worker when its last job took more than 50 ms there;
    - not more jobs in all than its lanes finish in 50 ms, and one more for each lane;
    - nothing that had waited for more than a second when that worker last finished a beat.

    And the worker with the free lane asks for every kind that it knows. Only jobs that certainly waited during the whole
    call are judged: claimed before it, and neither begun nor taken away until its answer came.
    """
    for ask in _asks(execution):
        if not ask.detail["free"]:
            continue
        if ask.detail["kinds"] != ask.detail["knows"]:
            yield f"worker {ask.worker} had a free lane and asked only for {ask.detail['kinds']} of {ask.detail['knows']}"
        if ask.detail["got"] < ask.detail["limit"]:
            for worker, waiting in waiting_elsewhere(execution, ask).items():
                yield from _too_many(execution, ask, worker, waiting)
                yield from _too_long(execution, ask, worker, waiting)


def waiting_elsewhere(execution: Execution, ask: Event) -> dict[str, list[Event]]:
    """The claims of each other worker that certainly waited for a lane while this one asked."""
    found: dict[str, list[Event]] = defaultdict(list)
    started = {event.attempt: event for event in execution.witness.of("start")}
    for attempt, claim in execution.claims.items():
        if not claim.detail.get("for_lanes") or claim.worker == ask.worker or not claim.before(ask):
            continue
        ended = any(ender.begun < ask.acked for ender in execution.enders[attempt])
        if not ended and not (attempt in started and started[attempt].begun < ask.acked):
            found[claim.worker or ""].append(claim)
    return found


def _too_many(execution: Execution, ask: Event, worker: str, waiting: list[Event]) -> Violations:
    calls = {event.begun: event.detail for event in _asks(execution) if event.worker == worker}
    taken_by = [calls[claim.begun] for claim in waiting]
    long = [claim.job for claim, call in zip(waiting, taken_by, strict=True) if _is_long(claim, call["last"])]
    lanes = taken_by[0]["lanes"]
    if len(long) > lanes:
        yield f"worker {worker} kept the long jobs {long} waiting for {lanes} lanes while worker {ask.worker} had a free one"
    most = max(lanes + lanes * SHORT / (min(SHORT, *call["usual"].values()) * ADAPTS ** call["ended"]) for call in taken_by)
    if len(waiting) > most:
        yield f"worker {worker} kept {len(waiting)} jobs waiting, {most:.0f} are permitted; worker {ask.worker} had a free lane"


def _is_long(claim: Event, last: dict[str, float]) -> bool:
    return last[claim.detail["claim"].kind] > SHORT


def _too_long(execution: Execution, ask: Event, worker: str, waiting: list[Event]) -> Violations:
    clocks = {event.begun: event.detail["clock"] for event in _asks(execution) if event.worker == worker}
    for beat in execution.witness.of("return"):
        if beat.worker != worker or not beat.before(ask):
            continue
        for claim in waiting:
            waited = beat.detail["clock"] - clocks[claim.begun]
            if claim.before(beat) and waited > LONGEST_WAIT:
                yield f"job {claim.job} had waited {waited:.1f} s at a beat of worker {worker}, which did not return it"


def smallest_priority_first(execution: Execution) -> Violations:
    """No claim that runs alone passes over a claimable job, and no worker leaves out a kind for more than 0.5 s.

    - A claim without another transaction beside it takes exactly the first jobs by (priority, id) of the kinds that it asks
      for, up to its limit. Only a job that needs a lock or a slot may be missing: they may be busy. So no job of lower priority
      is claimed in place of one of higher priority, and no claim returns less than there is.
    - A worker may ask for short kinds only while it has no free lane, if it has asked for every kind within the last 0.5 s.

    Beside other transactions a claim skips the rows that they have locked (SKIP LOCKED): it may pass over a job once for each
    of them. That is not judged; the next claim that runs alone is.
    """
    for claims in execution.witness.of("claims"):
        if claims.detail.get("claimable") is None:
            continue
        known = [row for row in claims.detail["claimable"] if row[1] in claims.detail["kinds"]]
        first, taken = known[: claims.detail["limit"]], claims.detail["taken"]
        for job in set(taken) - {row[0] for row in first}:
            yield f"a claim took job {job}, and the first {claims.detail['limit']} were {[row[0] for row in first]}"
        for job, _, is_tied in first:
            if job not in taken and not is_tied:
                yield f"a claim took {taken} and left job {job}, which was among the first {claims.detail['limit']}"
    for ask in _asks(execution):
        if ask.detail["kinds"] != ask.detail["knows"] and not _asked_for_all(execution, ask):
            yield f"worker {ask.worker} did not ask for all of {ask.detail['knows']} for {EVERY_KIND} s"


def _asked_for_all(execution: Execution, ask: Event) -> bool:
    mine = [other for other in _asks(execution) if other.worker == ask.worker and other.before(ask)]
    since = ask.detail["clock"] - EVERY_KIND
    return any(other.detail["kinds"] == other.detail["knows"] and other.detail["clock"] >= since for other in mine)


def _asks(execution: Execution) -> Iterator[Event]:
    """The claims of workers for their lanes."""
    return (event for event in execution.witness.of("claims") if "lanes" in event.detail)


FAIR = {"fair": waiting_jobs_are_shared, "priority": smallest_priority_first}
