"""Invariants of jobs and attempts: I1 to I7, I10, I11, I14 and I15 of the reliability reference.

Each function reads the whole execution of a schedule and yields a sentence for each violation. `sharing.py` has the
invariants of shared things (locks, slots, permits: I8, I9, I16), `parents.py` those of parents and children (I12, I13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from proof.checker.records import ENDED, WRITES, Execution, JobRow, MoveRow
from proof.checker.witness import CANCEL_ASKED, LOST, OK, Event

from holdfast.jobs.model import NewJob
from holdfast.jobs.states import LEGAL_MOVES, Move, State

Violations = Iterator[str]


def at_most_one_end(execution: Execution) -> Violations:
    """I1: at most one terminal write per job and generation; a rerun by an operator begins the next generation."""
    for job_id, moves in execution.moves.items():
        generation, ends = 0, 0
        for move in moves:
            if move.move == "rerun":
                generation, ends = generation + 1, 0
            elif move.is_end:
                ends += 1
                if ends > 1:
                    yield f"job {job_id} ended twice in generation {generation}: the second time by {move.move}"
        job = execution.jobs.get(job_id)
        if job is not None and job.generation != generation:
            yield f"job {job_id} says it is in generation {job.generation}, its history has {generation} reruns"


def end_belongs_to_current_attempt(execution: Execution) -> Violations:
    """I2: an attempt ends once, under the job, number and worker it was claimed for, and as its worker was told."""
    for attempt, moves in execution.ends.items():
        if len(moves) > 1:
            yield f"attempt {attempt} of job {moves[0].job_id} ended {len(moves)} times: {[m.move for m in moves]}"
        claim = execution.claims.get(attempt)
        if claim is None:
            yield f"{moves[0].move} of job {moves[0].job_id} names attempt {attempt}, which nobody was given"
            continue
        given = (claim.job, claim.detail["claim"].attempt_no, claim.worker)
        written = (moves[0].job_id, moves[0].attempt_no, moves[0].worker_id)
        if given != written:
            yield f"attempt {attempt} was given as (job, number, worker) {given} and ended as {written}"
    for event in execution.witness.of("end"):
        yield from _told_and_written(execution, event)


def _told_and_written(execution: Execution, event: Event) -> Violations:
    rows = execution.ends.get(event.attempt or "", [])
    told = f"{event.detail['move']} of job {event.job} under attempt {event.attempt}"
    if event.outcome == OK:
        wanted = (event.detail["move"], event.detail["state"])
        if (
            wanted[1] in ("pending", "submitted")
            and asked_to_stop(execution, event)
            and any(row.state == "cancelled" for row in rows)
        ):
            wanted = ("cancel", "cancelled")  # asked to stop: neither back to the queue nor to its engine
        if [(row.move, row.state) for row in rows] != [wanted]:
            yield f"{told} was accepted, but the history has {[(row.move, row.state) for row in rows]}"
    elif event.outcome == LOST and not rows:
        yield f"{told} was refused, but nobody ever ended that attempt"


def asked_to_stop(execution: Execution, event: Event) -> bool:
    """Whether somebody may have asked the job to stop before the event was over."""
    asks = (ask for ask in execution.witness.of("ask to stop", "abort") if ask.begun < event.acked)
    return any(ask.job in (None, event.job) for ask in asks)


def no_job_is_lost(execution: Execution) -> Violations:
    """I3 and I21: after everything has come to rest, each acknowledged job exists and has ended."""
    for event in execution.witness.of("enqueue"):
        if event.outcome == OK and event.job not in execution.jobs:
            yield f"job {event.job} was acknowledged and is gone"
    for job in execution.jobs.values():
        if job.state not in ENDED:
            yield f"job {job.id} is still {job.state} after everything was given time to end"


def no_phantom_job(execution: Execution) -> Violations:
    """I4: a job exists exactly if its making was acknowledged, once; one idempotency key is one job."""
    made: dict[int, int] = {}
    keys: dict[str, int] = {}
    for event in execution.witness.of("enqueue"):
        if event.outcome == OK and event.detail["created"]:
            made[event.detail["token"]] = event.job or 0
        key = event.detail["spec"].idempotency_key
        if event.outcome == OK and key and keys.setdefault(key, event.job or 0) != event.job:
            yield f"idempotency key {key} made job {keys[key]} and job {event.job}"
    children = {
        child.payload["n"] for event in execution.witness.of("end") if event.outcome == OK for child in event.detail["children"]
    }
    seen: Counter[int] = Counter()
    for job in execution.jobs.values():
        token = job.token or 0
        seen[token] += 1
        if token not in made and token not in children:
            yield f"job {job.id} exists, but the call that made it was refused or undone"
        if made.get(token, job.id) != job.id:
            yield f"job {job.id} was acknowledged as job {made[token]}"
    for token, count in seen.items():
        if count > 1:
            yield f"{count} jobs came from one call (token {token})"


def attempts_count_up_by_one(execution: Execution) -> Violations:
    """I5: the attempts of a job are numbered 1, 2, 3, … without gap or return, whoever they were given to."""
    for job_id, moves in execution.moves.items():
        numbers = [move.attempt_no for move in moves if move.attempt_id is not None and move.move != "act"]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"the attempts of job {job_id} ended in the order {numbers}"
        job = execution.jobs.get(job_id)
        if job is not None and job.state in ENDED and job.attempt_no != len(numbers):
            yield f"job {job_id} counts {job.attempt_no} attempts, its history has {len(numbers)}"
    for job_id, claims in execution.claims_of.items():
        numbers = [claim.detail["claim"].attempt_no for claim in claims]
        if len(numbers) != len(set(numbers)):
            yield f"two attempts of job {job_id} have the same number: {numbers}"


def attempt_ids_are_never_reused(execution: Execution) -> Violations:
    """I6: an attempt id is given once, for one job; the numbers for systems outside rise with every claim of a job."""
    given: Counter[str] = Counter(event.attempt or "" for event in execution.witness.of("claim"))
    for attempt, count in given.items():
        if count > 1:
            yield f"attempt {attempt} was given {count} times"
    for attempt, moves in execution.ends.items():
        if len({move.job_id for move in moves}) > 1:
            yield f"attempt {attempt} is in the history of several jobs"
    for job_id, claims in execution.claims_of.items():
        tokens = [claim.detail["claim"].fence_token for claim in claims]
        if any(later <= earlier for earlier, later in pairwise(tokens)):
            yield f"the fence tokens of job {job_id} do not rise: {tokens}"


def budgets_are_kept(execution: Execution) -> Violations:
    """I7: errors and crashes are each counted, and nobody runs without budget; what was granted stands in the history."""
    specs = {event.detail["token"]: event.detail["spec"] for event in execution.witness.of("enqueue")}
    specs |= {child.payload["n"]: child for event in execution.witness.of("end") for child in event.detail["children"]}
    for job in execution.jobs.values():
        yield from _budget(job, specs.get(job.token or 0), execution)


def _budget(job: JobRow, spec: NewJob | None, execution: Execution) -> Violations:
    errors = crashes = 0
    most_errors, most_crashes = (spec.max_attempts, spec.max_crashes) if spec else (job.max_attempts, job.max_crashes)
    for move in execution.moves.get(job.id, ()):
        if move.attempt_id is not None and (errors >= most_errors or crashes >= most_crashes):
            yield (
                f"attempt {move.attempt_no} of job {job.id} ran after {errors} of {most_errors} errors and "
                f"{crashes} of {most_crashes} crashes"
            )
        wanted = execution.finished[move.attempt_id].detail["move"] if move.attempt_id in execution.finished else move.move
        errors += wanted in ("retry", "fail")
        crashes += move.is_crash
        granted = (move.detail or {}).get("granted")
        if granted is not None:
            most_errors, most_crashes = max(most_errors, errors + granted), max(most_crashes, crashes + granted)
    if (job.errors, job.crashes) != (errors, crashes):
        yield f"job {job.id} counts {job.errors} errors and {job.crashes} crashes; it had {errors} and {crashes}"
    if (job.max_attempts, job.max_crashes) != (most_errors, most_crashes):
        yield (
            f"job {job.id} may have {job.max_attempts} errors and {job.max_crashes} crashes; "
            f"granted were {most_errors} and {most_crashes}"
        )


def leases_are_respected(execution: Execution) -> Violations:
    """I10: nobody is robbed before its lease is over, a renewal counts from when it was made, and a sweep finds all."""
    for moves in execution.moves.values():
        for move in moves:
            cause = (move.detail or {}).get("cause") if move.is_taken_for_a_cause else None
            if cause == "lease_lost" or move.move == "recover":
                yield from _robbed(execution, move)
            overran = (event.attempt for event in execution.witness.of("overrun"))
            if cause == "max_runtime" and move.attempt_id not in overran:
                yield f"job {move.job_id} was taken for running too long, and did not"
    for event in execution.witness.of("beat"):
        clock, until = event.detail["clock"], event.detail["until"]
        known = event.detail.get("known", True)  # a worker that has resigned renews nothing
        if known and clock is not None and until is not None and until < clock + event.detail["lease"]:
            yield f"worker {event.worker} renewed at {clock} or later, but its lease ends at {until}"
    for event in execution.witness.of("find strays"):
        for job_id, attempt in event.detail["missed"]:
            if execution.surely_alive_after(attempt, event):
                yield f"worker {event.worker} was not told of job {job_id}, which it holds without knowing"
    for event in execution.witness.of("sweep"):
        if event.detail["left"]:
            yield f"a sweep left jobs {event.detail['left']} with holders that were silent before it began"


def _robbed(execution: Execution, move: MoveRow) -> Violations:
    """The last thing that was said about the worker's lease, by the database's clock, before its job was taken.

    A beat that came too late waits for the rescue, which holds the worker's row, and then writes the time at which it began to
    wait: that it is the later transaction of the two tells it from a beat that came in time.
    """
    last, live = None, True
    for event in execution.witness.of("beat", "expire"):
        at = event.detail["at"]
        if (event.detail.get("xid") or 0) > int(move.xid):
            continue
        if event.worker == move.worker_id and at is not None and at <= move.at and (last is None or at >= last):
            last = at
            live = event.what == "beat" and event.detail["until"] >= move.at
    if live:
        yield f"job {move.job_id} was taken by {move.move} from worker {move.worker_id}, whose lease was not over"


def the_dead_change_nothing(execution: Execution) -> Violations:
    """I11 and the fence itself: after its end nothing is let in under an attempt, and before it nothing is refused."""
    for event in execution.witness.events:
        if event.attempt is None or event.attempt not in execution.claims:
            continue
        if event.what in WRITES or event.what == "end":
            accepted = event.outcome in (OK, CANCEL_ASKED)
            if accepted and event.attempt and execution.surely_ended_before(event.attempt, event):
                yield f"{_act(event)} was let in under attempt {event.attempt} of job {event.job} after its end"
            if event.outcome == LOST and execution.surely_alive_after(event.attempt, event):
                yield f"{_act(event)} was refused under attempt {event.attempt} of job {event.job}, which still held it"
        elif event.what == "resolve":
            yield from _resolved(execution, event)
    for event in execution.witness.of("beat"):
        yield from _beat(execution, event)


def _act(event: Event) -> str:
    return f"{event.detail['move']} by {event.detail['via']}" if event.what == "end" else event.what


def _resolved(execution: Execution, event: Event) -> Violations:
    attempt, answer = event.attempt or "", event.detail["answer"]
    own = execution.finished.get(attempt)
    if answer == "ended" and (own is None or own.begun > event.acked):
        yield f"attempt {attempt} of job {event.job} was told that its own end was written, and it was not"
    if answer == "held" and execution.surely_ended_before(attempt, event):
        yield f"attempt {attempt} of job {event.job} was told that it still holds its job after its end"
    if answer == "lost" and own is not None and own.before(event):
        yield f"attempt {attempt} of job {event.job} was told that somebody else ended it; it did so itself"


def _beat(execution: Execution, event: Event) -> Violations:
    for job_id, attempt in event.detail["held"]:
        said_lost = attempt in event.detail["lost"]
        if not said_lost and execution.surely_ended_before(attempt, event):
            yield f"worker {event.worker} was not told that attempt {attempt} of job {job_id} is over"
        if said_lost and execution.surely_alive_after(attempt, event):
            yield f"worker {event.worker} was told that attempt {attempt} of job {job_id} is over, and it is not"


def cancelled_stays_cancelled(execution: Execution) -> Violations:
    """I14: what was cancelled is not claimed again, and who was asked to stop is told so at the next checkpoint."""
    reruns = [event for event in execution.witness.of("rerun") if event.outcome == OK]
    for cancel in execution.witness.of("cancel"):
        if cancel.outcome != OK:
            continue
        for claim in execution.claims_of.get(cancel.job or 0, ()):
            if cancel.before(claim) and not _rerun_between(reruns, cancel, claim):
                yield f"job {cancel.job} was cancelled and claimed afterwards"
    for ask in execution.witness.of("ask to stop"):
        for write in execution.witness.of("progress", "checkpoint"):
            claim = execution.claims.get(write.attempt or "")
            if write.job != ask.job or write.outcome != OK or claim is None or not claim.before(ask):
                continue
            if ask.before(write) and not _rerun_between(reruns, ask, write):
                yield f"job {ask.job} was asked to stop, but its {write.what} did not say so"


def _rerun_between(reruns: list[Event], first: Event, last: Event) -> bool:
    return any(event.job == first.job and event.acked > first.begun and event.begun < last.acked for event in reruns)


def every_move_is_legal(execution: Execution) -> Violations:
    """I15: the history of a job is a path through the table of legal moves; what has ended stays ended."""
    for job_id, moves in execution.moves.items():
        state: State | None = None  # pending or blocked: the enqueue is not in the history
        for row in moves:
            if row.move == "act":
                continue
            move, after = Move(row.move), State(row.state)
            befores = {before for before, to in LEGAL_MOVES[move] if to == after}
            if row.attempt_id is not None:
                befores &= {State.RUNNING}
                claimed = {None, State.PENDING, State.SUBMITTED}
                if state not in claimed:
                    yield f"job {job_id} was {state} when attempt {row.attempt_no} was claimed"
            elif state is not None and state not in befores:
                yield f"job {job_id} was {state} and went to {after} by {move}"
            if not befores:
                yield f"job {job_id} went to {after} by {move}, which no state allows"
            state = after
        job = execution.jobs.get(job_id)
        if job is not None and state is not None and state != job.state:
            yield f"job {job_id} is {job.state}, its history ends with {state}"


def nothing_half_done(execution: Execution) -> Violations:
    """Promise 6: what `publish` writes is there exactly once for each accepted completion, and never otherwise."""
    wanted = Counter(
        (event.job, event.attempt)
        for event in execution.witness.of("end")
        if event.outcome == OK and event.detail["published"] and event.detail["state"] == "completed"
    )
    found = Counter((job, attempt) for job, attempt in execution.records.published)
    for (job, attempt), count in (found - wanted).items():
        yield f"job {job} published {count} time(s) too often under attempt {attempt}"
    for job, attempt in wanted - found:
        yield f"job {job} completed under attempt {attempt}, but what it published is missing"


def no_surprises(execution: Execution) -> Violations:
    """No deadlock, no broken constraint, no failed assertion, no claim that waits: the kernel avoids them all itself."""
    for event in execution.witness.of("error"):
        yield f"{event.detail['act']}: {event.detail['error']}"
    for event in execution.witness.of("claims"):
        if event.detail["got"] > event.detail["limit"]:
            yield f"a claim for {event.detail['limit']} jobs took {event.detail['got']}"
    for event in execution.witness.of("waited"):
        if (event.detail["act"], event.detail["statement"]) in NEVER_WAITS:
            yield f"{event.detail['act']} waited for somebody else's row"


# The statements that take what is free and leave what is not: act and statement (BEGIN counts).
NEVER_WAITS = {("claim_some", 1), ("claim_this", 1), ("claim_polls", 2), ("promote", 1), ("clean_up", 1)}

ATTEMPTS = {
    "I1": at_most_one_end,
    "I2": end_belongs_to_current_attempt,
    "I3": no_job_is_lost,
    "I4": no_phantom_job,
    "I5": attempts_count_up_by_one,
    "I6": attempt_ids_are_never_reused,
    "I7": budgets_are_kept,
    "I10": leases_are_respected,
    "I11": the_dead_change_nothing,
    "I14": cancelled_stays_cancelled,
    "I15": every_move_is_legal,
    "publish": nothing_half_done,
    "surprise": no_surprises,
}
