"""Invariants of shared things: locks and permits (I8, I9, I16), slots, unique keys, wake-ups, effects. Called by: `check.py`.

Locks are checked three ways: by the database's clock in the history, by the witness's counter, and in the reads during
the schedule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from proof.checker.records import ENDED, Execution, MoveRow, WantRow
from proof.checker.witness import OK, Event

Violations = Iterator[str]


class Hold(NamedTuple):
    """A stretch of time in which a job certainly had something. `most` is how much company it allows; None is any."""

    key: str
    job: int
    most: int | None
    start: Any
    stop: Any
    fence: int = 0


def _crowds(holds: Iterable[Hold], unit: str) -> Violations:
    """Sweep over the holds of each key: never more at once than the strictest of them allows."""
    by_key: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        if hold.stop is None or hold.start < hold.stop:
            by_key[hold.key].append(hold)
    for key, listed in by_key.items():
        listed.sort(key=lambda hold: hold.start)
        inside: list[Hold] = []
        for hold in listed:
            inside = [other for other in inside if other.stop is None or other.stop > hold.start]
            inside.append(hold)
            limits = [other.most for other in inside if other.most is not None]
            jobs = {other.job for other in inside}
            if limits and len(jobs) > min(limits):
                yield f"{key} was held by jobs {sorted(jobs)} at once ({unit}), at most {min(limits)} are allowed"


def _holds_by_database(execution: Execution) -> Iterator[Hold]:
    """By the history: from the claim to the end of the attempt, and on while an engine has the work."""
    for want in execution.records.wants:
        start = None
        for move in execution.moves.get(want.job_id, ()):
            if move.attempt_id is None and not (start is not None and move.is_end):
                continue
            start = start or move.claimed_at
            if move.state == "submitted" or (want.when_busy == "reject" and not move.is_end):
                continue
            yield Hold(f"lock {want.key}", want.job_id, want.most, start, move.at)
            start = None


def _holds_by_witness(execution: Execution) -> Iterator[Hold]:
    """By what workers were told: from the answer to the claim until somebody began to end the attempt."""
    wants: dict[int, list[WantRow]] = defaultdict(list)
    for want in execution.records.wants:
        wants[want.job_id].append(want)
    for attempt, claim in execution.claims.items():
        stops = [event.begun for event in execution.enders[attempt]]
        for want in wants.get(claim.job or 0, ()):
            fence = claim.detail["claim"].fence_token
            stop = min(stops) if stops else None
            yield Hold(f"lock {want.key}", want.job_id, want.most, claim.acked, stop, fence)


def locks_are_exclusive(execution: Execution) -> Violations:
    """I8: no two live attempts hold one lock, by either log; and whoever held it later has the greater fence token."""
    yield from _crowds((h for h in _holds_by_database(execution) if h.most == 1), "by the database's clock")
    holds = sorted((hold for hold in _holds_by_witness(execution) if hold.most == 1), key=lambda hold: hold.start)
    yield from _crowds(holds, "by the witness")
    for index, hold in enumerate(holds):
        for later in holds[index + 1 :]:
            if later.key == hold.key and hold.stop is not None and hold.stop < later.start and later.fence < hold.fence:
                yield f"{hold.key} went from fence token {hold.fence} back to {later.fence}"


def locks_are_freed_by_their_owner(execution: Execution) -> Violations:
    """I9: a place on a lock belongs to the attempt that runs, and goes with it: no stranger frees it, none is left over."""
    for look in execution.witness.of("look"):
        for holder in look.detail["holders"]:
            yield from _holder(holder)
        for job, key in look.detail["bare"]:
            yield f"job {job} runs without the lock {key} that it asked for"
    for key, job in execution.records.holders:
        yield f"job {job} still holds {key} after everything has ended"


def _holder(holder: dict[str, Any]) -> Violations:
    place = f"job {holder['job']} ({holder['state']}) holds {holder['key']}"
    if holder["state"] in ENDED:
        yield f"{place} after its end"
    elif holder["state"] == "running" and holder["holder"] != holder["attempt"]:
        yield f"{place} under attempt {holder['holder']}, but runs under {holder['attempt']}"
    elif holder["state"] == "submitted" and holder["holder"] is not None:
        yield f"{place} under attempt {holder['holder']}, which is over"
    elif holder["state"] == "pending" and (holder["when_busy"], holder["holder"]) != ("reject", None):
        yield f"{place} without running"
    elif holder["state"] == "blocked":
        yield f"{place} while it waits"


def limits_are_kept(execution: Execution) -> Violations:
    """I16: never more holders of a key than the strictest of them allows, by either log and in every look."""
    yield from _crowds(_holds_by_database(execution), "by the database's clock")
    yield from _crowds(_holds_by_witness(execution), "by the witness")
    for look in execution.witness.of("look"):
        by_key: dict[str, list[int | None]] = defaultdict(list)
        for holder in look.detail["holders"]:
            by_key[holder["key"]].append(holder["most"])
        for key, mosts in by_key.items():
            limits = [most for most in mosts if most is not None]
            if limits and len(mosts) > min(limits):
                yield f"{key} has {len(mosts)} holders in the table, at most {min(limits)} are allowed"


def rejects_are_deserved(execution: Execution) -> Violations:
    """An enqueue with `reject` is refused only if another job can have held one of its keys, or waited for it."""
    wanted = {want.key for want in execution.records.wants}
    calls = Counter(event.begun for event in execution.witness.of("enqueue"))
    for event in execution.witness.of("enqueue"):
        if event.detail.get("error") != "LockBusy" or calls[event.begun] > 1:  # of many, one may have been in another's way
            continue
        keys = {lock.key for lock in event.detail["spec"].locks}
        if not keys & wanted:
            yield f"an enqueue was refused for {sorted(keys)}, which no other job ever asked for"


def nobody_overtakes_a_writer(execution: Execution) -> Violations:
    """While a job waits for an exclusive lock, no job behind it in the line gets the key. Both are decided under the row of the
    key, so the database's clock tells which came first. Kinds that were paused are passed on purpose."""
    holds: dict[str, list[Hold]] = defaultdict(list)
    early = {want.job_id for want in execution.records.wants if want.when_busy == "reject"}  # they have it before their claim
    early |= {move.job_id for move in execution.records.moves if move.move == "rerun"}  # and these may have had it so once
    for hold in _holds_by_database(execution):
        if hold.job not in early:
            holds[hold.key].append(hold)
    paused = {event.detail["kind"] for event in execution.witness.of("pause")}
    for want in execution.records.wants:
        waiter = execution.jobs.get(want.job_id)
        if want.most != 1 or waiter is None or paused & {waiter.kind, "*"}:
            continue
        for since, until in _waits(execution, want):
            for hold in holds[f"lock {want.key}"]:
                other = execution.jobs[hold.job]
                if since < hold.start and (until is None or hold.start < until) and waiter.turn < other.turn:
                    yield f"job {other.id} got lock {want.key} while job {waiter.id}, which comes before it, waited for it"


def _waits(execution: Execution, want: WantRow) -> Iterator[tuple[Any, Any]]:
    """When the job certainly stood in the line of this key: from its block there to its next move."""
    moves = [move for move in execution.moves.get(want.job_id, ()) if move.move != "act"]
    for number, move in enumerate(moves):
        if move.move == "block" and move.reason == f"lock {want.key}":
            yield move.at, moves[number + 1].at if number + 1 < len(moves) else None


def slots_have_one_run(execution: Execution) -> Violations:
    """One current job per slot: no two of its jobs run at once, and the one that runs is the current one."""
    for look in execution.witness.of("look"):
        for slot, jobs in look.detail["crowded"]:
            yield f"slot {slot} has running jobs {jobs} at once"
        for slot, job in look.detail["not_current"]:
            yield f"job {job} runs in slot {slot} and is not its current job"
    by_slot = (_slot_hold(execution, attempt, claim) for attempt, claim in execution.claims.items())
    yield from _crowds((hold for hold in by_slot if hold is not None), "by the witness")


def _slot_hold(execution: Execution, attempt: str, claim: Event) -> Hold | None:
    job = execution.jobs.get(claim.job or 0)
    if job is None or job.slot_key is None:
        return None
    stops = [event.begun for event in execution.enders[attempt]]
    return Hold(f"slot {job.slot_key}", job.id, 1, claim.acked, min(stops) if stops else None)


def no_trigger_is_lost(execution: Execution) -> Violations:
    """A call that found a waiting twin instead of making a job is followed by a run of that twin, or by its cancelling."""
    for event in execution.witness.of("enqueue"):
        spec = event.detail["spec"]
        if event.outcome != OK or event.detail["created"] or not (spec.slot_key or spec.unique_key):
            continue
        if spec.unique_while == "live" and spec.unique_key:
            continue  # it may have found one that runs: that is what `live` means
        job = event.job or 0
        data_at = event.detail.get("data_at")  # the last moment of the caller's own writes, before its commit
        if data_at is None:
            followed = any(claim.acked > event.begun for claim in execution.claims_of.get(job, ()))
        else:
            followed = any(move.claimed_at is not None and move.claimed_at > data_at for move in execution.moves.get(job, ()))
        stopped = any(m.move == "cancel" and m.attempt_id is None for m in execution.moves.get(job, ()))
        if not followed and not stopped:
            yield f"a trigger was merged into job {job}, which had already started and never ran again"


def unique_means_one_waiting(execution: Execution) -> Violations:
    """Of one unique key at most one job waits at a time."""
    for look in execution.witness.of("look"):
        for key, jobs in look.detail["twins"]:
            yield f"jobs {jobs} wait, or live, under one unique key {key}"


def wakes_belong_to_an_end(execution: Execution) -> Violations:
    """Promise 3: a job is woken in the transaction that freed what it waited for, or by the sweep. A place is freed by the end
    of an attempt or of a job, and by a waiter that goes from the line of one key to that of another."""
    sweeps = {event.detail["xid"] for event in execution.witness.of("wake")}
    frees = {move.xid for move in execution.records.moves if move.attempt_id is not None or move.is_end or move.move == "block"}
    for move in execution.records.moves:
        if move.move == "wake" and move.xid not in frees and move.xid not in sweeps:
            yield f"job {move.job_id} was woken in transaction {move.xid}, in which nothing ended"
    for look in execution.witness.of("look after end"):
        for what, job in look.detail["forgotten"]:
            yield f"job {look.job} gave back {what}, but job {job}, which waits for it, was not woken"


def effects_are_settled(execution: Execution) -> Violations:
    """I17: what was made outside is kept by the attempt that completed its job, or gone; nothing is left over."""
    kept = set()
    for effect in execution.records.effects:
        job = execution.jobs.get(effect.job_id)
        if job is None or job.state not in ENDED:
            continue
        wanted = "kept" if _is_kept(execution, effect.job_id, effect.attempt_id, effect.temporary) else "gone"
        if effect.state != wanted:
            yield f"effect {effect.tag} of job {effect.job_id} ({job.state}) is {effect.state} and should be {wanted}"
        if effect.state == "kept":
            kept.add(effect.tag)
    for tag in execution.outside - kept:
        yield f"{tag} exists outside and nobody knows of it any more"


def _is_kept(execution: Execution, job_id: int, attempt: str, temporary: bool) -> bool:
    last: MoveRow | None = next((move for move in reversed(execution.moves.get(job_id, [])) if move.is_end), None)
    return last is not None and last.state == "completed" and last.attempt_id == attempt and not temporary


SHARED = {
    "I8": locks_are_exclusive,
    "I9": locks_are_freed_by_their_owner,
    "I16": limits_are_kept,
    "reject": rejects_are_deserved,
    "line": nobody_overtakes_a_writer,
    "slot": slots_have_one_run,
    "trigger": no_trigger_is_lost,
    "unique": unique_means_one_waiting,
    "wake": wakes_belong_to_an_end,
    "I17": effects_are_settled,
}
