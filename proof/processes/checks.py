"""Invariants of real processes: the system's log compared with the witness's. Called by: processes, tests.

Invariants that need only the system's log are those of the in-process schedules. The ones here compare it with the
lines that handlers wrote as they did something, wherever they were killed or frozen next.

**Can a side effect come after a rescue?** Nothing can prevent that a process is frozen between its last check of the
lease and its act (F-12). Such an act was permitted in time and happens after the worker's own deadline: it carries its
fence, is counted (`is_prompt`), and is no violation. The witness takes the deadline together with the check. If it read
the deadline at the act, it would read, after a freeze, the one that the heartbeat thread has renewed meanwhile, and
report a correct worker.

Every other late act is a defect. There were two. First, the *answer* to a check was read after the freeze, when the
heartbeat thread had renewed the lease although the job was rescued in between; now an answer counts only if the lease
did not lapse while it was on its way (`Context._raise_if_stale`). Second, a worker took a running job from itself: two
heartbeats reported the same job as a stray, and the second report was executed after the job had been claimed again;
now strays are attempts, and attempts that are held by then are ignored (`Lanes.renounce`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from proof.checker import attempts, parents, sharing
from proof.checker.check import MOST_SENTENCES, Violation
from proof.checker.records import Execution, MoveRow, read_records
from proof.checker.witness import Witness

from holdfast.jobs.model import NewJob

Violations = Iterator[str]
CLOCKS = 0.005  # the witness's clock and the database's are read a moment apart

PUBLISHERS = frozenset({"proof.publish", "fault.late"})

WORKERS = "SELECT id::text, beat_at, lease_until, stopped_at, xmin::text::bigint FROM holdfast.workers"
RESULTS = "SELECT id, result FROM holdfast.jobs WHERE state = 'completed'"
SLOTS = "SELECT id, slot_key FROM holdfast.jobs WHERE slot_key IS NOT NULL"


@dataclass(slots=True)
class Line:
    """One line of the witness."""

    what: str
    job: int
    kind: str
    attempt: str
    number: int
    fence: int
    worker: str
    pid: int
    at: float  # monotonic, the same clock for all processes of the machine
    wall: float
    checked: float | None = None  # when it was last told that it may
    until: float = 0.0  # the worker's own deadline, as it was then
    key: str | None = None
    tag: str | None = None
    poll: bool = False

    @property
    def is_prompt(self) -> bool:
        """Whether it was done while it was allowed; or allowed when it could not be, which nothing excuses."""
        return self.checked is None or self.at <= self.until or self.checked > self.until


@dataclass(slots=True)
class Acknowledged:
    """An enqueue that was answered, if need be when it was asked again under its key."""

    job: int
    new: NewJob


@dataclass(slots=True)
class Account:
    """Everything there is to know about one schedule."""

    execution: Execution
    lines: list[Line]
    acknowledged: list[Acknowledged]
    workers: list[tuple[str, datetime, datetime, datetime | None, int]]  # the last: which transaction wrote the row
    results: dict[int, Any]
    complaints: list[str] = field(default_factory=list)  # what the harness itself saw go wrong

    @property
    def ends(self) -> dict[str, list[MoveRow]]:
        return self.execution.ends


def read_witness(folder: Path) -> list[Line]:
    """The lines so far."""
    return [Line(**json.loads(line)) for line in whole_lines(folder / "witness")]


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that others may be writing: a reader may find the first half of the last one. Without it: none."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


async def read_account(url: str, folder: Path, acknowledged: list[Acknowledged], complaints: list[str]) -> Account:
    """Both logs, once everything has come to rest."""
    lines = read_witness(folder)
    witness = Witness()
    for one in acknowledged:
        begun = witness.tick()
        witness.note("enqueue", begun, job=one.job, token=one.new.payload["n"], spec=one.new, created=True)
    late = {line.tag for line in lines if line.tag is not None and not line.is_prompt}
    engine = folder / "engine"
    outside = {path.name for path in engine.iterdir()} if engine.exists() else set()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        records = await read_records(conn, 0)
        workers = await (await conn.execute(WORKERS)).fetchall()
        results = dict(await (await conn.execute(RESULTS)).fetchall())
    return Account(Execution(records, witness, frozenset(outside - late)), lines, acknowledged, workers, results, complaints)


# ---------------------------------------------------------------------------------------------------------------------
# What must hold
# ---------------------------------------------------------------------------------------------------------------------


def one_job_for_each_call(account: Account) -> Violations:
    """I4: a job exists exactly if a call for it was acknowledged or a parent made it; one key is one job."""
    acknowledged = {one.job for one in account.acknowledged}
    for job in account.execution.jobs.values():
        if job.parent_id is None and job.id not in acknowledged:
            yield f"job {job.id} exists, and nobody was told so"
    keys: dict[str, int] = {}
    for one in account.acknowledged:
        key = one.new.idempotency_key
        if key and keys.setdefault(key, one.job) != one.job:
            yield f"the key {key} made job {keys[key]} and job {one.job}"


def attempts_are_known_to_both(account: Account) -> Violations:
    """I2, I6: an attempt that somebody ran is in the history, once, for the same job and worker; and it was run once."""
    starts = Counter(line.attempt for line in account.lines if line.what == "start")
    for attempt, count in starts.items():
        if count > 1:
            yield f"attempt {attempt} was started {count} times"
    seen = {line.attempt: line for line in account.lines}
    for attempt, line in seen.items():
        rows = account.ends.get(attempt, [])
        if [(row.job_id, row.attempt_no, row.worker_id) for row in rows] != [(line.job, line.number, line.worker)]:
            yield (
                f"attempt {attempt} ran job {line.job} as number {line.number} on {line.worker}; the history has "
                f"{[(row.move, row.job_id, row.attempt_no, row.worker_id) for row in rows]}"
            )
    for attempt, rows in account.ends.items():
        if len(rows) > 1:
            yield f"attempt {attempt} of job {rows[0].job_id} ended {len(rows)} times: {[row.move for row in rows]}"


def completed_means_finished(account: Account) -> Violations:
    """I1, I2: a job completes under an attempt whose handler came to its end, and has the result of that attempt."""
    finished = {line.attempt for line in account.lines if line.what == "finish"}
    for moves in account.execution.moves.values():
        for move in moves:
            if move.move != "complete":
                continue
            if move.attempt_id not in finished:
                yield f"job {move.job_id} completed under attempt {move.attempt_id}, whose handler never came to its end"
            result = account.results.get(move.job_id)
            if result != move.attempt_id:
                yield f"job {move.job_id} completed under attempt {move.attempt_id} and has the result of {result}"


def published_once(account: Account) -> Violations:
    """Promise 6: what is published is there once for each completion, under its attempt, and never otherwise."""
    published = {line.job for line in account.lines if line.kind in PUBLISHERS}
    wanted = Counter(
        (move.job_id, move.attempt_id)
        for moves in account.execution.moves.values()
        for move in moves
        if move.move == "complete" and move.job_id in published
    )
    found: Counter[tuple[int, str | None]] = Counter((job, attempt) for job, attempt in account.execution.records.published)
    if wanted != found:
        yield f"published and not completed: {dict(found - wanted)}; completed and not published: {dict(wanted - found)}"


def nobody_acts_after_its_end(account: Account) -> Violations:
    """I11, I14: a side effect that was asked for first comes before the attempt has ended, by whatever hand."""
    for line in account.lines:
        if line.what not in ("effect", "submit") or not line.is_prompt:
            continue
        for row in account.ends.get(line.attempt, ()):
            late = line.wall - row.at.timestamp()
            if late > CLOCKS:
                yield (
                    f"attempt {line.number} of job {line.job} made its {line.what} {late * 1000:.0f} ms after "
                    f"{row.move} had ended it, {row.reason} ({line.attempt}, process {line.pid}; allowed "
                    f"{(line.at - (line.checked or line.at)) * 1000:.0f} ms before, for {(line.until - line.at) * 1000:.0f} ms)"
                )


def fences_rise_under_a_lock(account: Account) -> Violations:
    """I8 by the witness: under one key, an older attempt does nothing any more once a newer one has begun to act."""
    by_key: dict[str, list[Line]] = defaultdict(list)
    for line in sorted(account.lines, key=lambda line: line.at):
        if line.key is not None and line.what == "effect" and line.is_prompt:
            by_key[line.key].append(line)
    for key, lines in by_key.items():
        highest = 0
        for line in lines:
            if line.fence < highest:
                yield f"{key}: job {line.job} acted under fence {line.fence} after somebody had acted under {highest}"
            highest = max(highest, line.fence)


def nobody_is_robbed(account: Account) -> Violations:
    """I10: a job is taken for a lost lease only when the last lease that its worker was given is over.

    A beat that came too late waits for the rescue, which holds the row, and then writes the time at which it began to wait:
    that it is the later transaction of the two is what tells it from a beat that came in time."""
    leases = {worker: (beat, until, xid) for worker, beat, until, stopped, xid in account.workers if stopped is None}
    for moves in account.execution.moves.values():
        for move in moves:
            if not move.is_crash or (move.detail or {}).get("cause") != "lease_lost" or move.worker_id not in leases:
                continue
            beat, until, xid = leases[move.worker_id]
            if beat <= move.at < until and xid < int(move.xid):
                yield f"job {move.job_id} was taken from {move.worker_id} at {move.at}, whose lease ends at {until}"


def nothing_is_submitted_twice(account: Account) -> Violations:
    """I17, promise 7: an engine gets the work of a job once, wherever the worker died or the answer was lost."""
    submits = Counter(line.job for line in account.lines if line.what == "submit" and line.is_prompt)
    for job, count in submits.items():
        if count > 1:
            yield f"the work of job {job} was given to the engine {count} times"


def harness_saw_nothing_wrong(account: Account) -> Violations:
    """I21 and what else the harness waited for in vain."""
    yield from account.complaints


BOTH: Mapping[str, Callable[[Account], Violations]] = {
    "I4": one_job_for_each_call,
    "I2": attempts_are_known_to_both,
    "finish": completed_means_finished,
    "publish": published_once,
    "I11": nobody_acts_after_its_end,
    "I8 outside": fences_rise_under_a_lock,
    "I10": nobody_is_robbed,
    "I17 outside": nothing_is_submitted_twice,
    "I21": harness_saw_nothing_wrong,
}
SYSTEM: Mapping[str, Callable[[Execution], Violations]] = {
    "I1": attempts.at_most_one_end,
    "I3": attempts.no_job_is_lost,
    "I5": attempts.attempts_count_up_by_one,
    "I7": attempts.budgets_are_kept,
    "I12": parents.children_come_with_their_parent,
    "I13": parents.nobody_runs_before_its_parents,
    "I15": attempts.every_move_is_legal,
    "I8": sharing.locks_are_exclusive,
    "I9": sharing.locks_are_freed_by_their_owner,
    "I16": sharing.limits_are_kept,
    "I17": sharing.effects_are_settled,
}


def check(account: Account) -> list[Violation]:
    """Everything that is wrong; empty if nothing is."""
    found: list[Violation] = []
    for name, of_execution in SYSTEM.items():
        found += _some(name, of_execution(account.execution))
    for name, of_both in BOTH.items():
        found += _some(name, of_both(account))
    return found


def _some(name: str, sentences: Violations) -> list[Violation]:
    return [Violation(name, sentence) for sentence, _ in zip(sentences, range(MOST_SENTENCES), strict=False)]
