"""Executions for the history checker, built by hand: rows in Postgres (`records`) and responses to the actors (`witness`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from proof.checker.records import Execution, JobRow, MoveRow, Records
from proof.checker.witness import OK, Event, Witness

from holdfast.jobs.model import NewJob

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)  # noqa: UP017
LEASE = timedelta(hours=1)


class ExecutionBuilder:
    """Two logs that grow together; every act takes a second by the database's clock and two ticks by the witness's."""

    def __init__(self) -> None:
        self.witness, self.records, self.outside = Witness(), Records(), set[str]()
        self.seconds = 0

    def now(self) -> datetime:
        self.seconds += 1
        return NOON + timedelta(seconds=self.seconds)

    def note(self, what: str, outcome: str = OK, **fields: Any) -> Event:
        return self.witness.note(what, self.witness.tick(), outcome, **fields)

    def job(self, number: int, **fields: Any) -> JobRow:
        row = JobRow(number, token=number, **fields)
        self.records.jobs.append(row)
        return row

    def change(self, number: int, **fields: Any) -> None:
        self.records.jobs = [replace(job, **fields) if job.id == number else job for job in self.records.jobs]

    def enqueue(self, number: int, *, created: bool = True, spec: dict[str, Any] | None = None, **fields: Any) -> NewJob:
        made = NewJob("k", {"n": number}, **(spec or {}))
        if created:
            self.job(number, **fields)
        self.note("enqueue", job=number, spec=made, token=number, created=created, data_at=None)
        return made

    def claim(
        self,
        number: int,
        attempt: str,
        no: int = 1,
        *,
        worker: str = "w",
        fence: int | None = None,
        how: str = "batch",
        kind: str = "k",
        **fields: Any,
    ) -> Event:
        fence = fence if fence is not None else self.seconds
        claimed = SimpleNamespace(attempt_no=no, fence_token=fence, kind=kind, pipeline_id=None)
        self.claimed_at = self.now()
        return self.note("claim", job=number, attempt=attempt, worker=worker, claim=claimed, how=how, **fields)

    def row(
        self, number: int, move: str, state: str, attempt: str | None = None, no: int | None = None, **fields: Any
    ) -> MoveRow:
        claimed = {"claimed_at": self.claimed_at, "worker_id": "w"} if attempt else {}
        defaults = {"at": self.now(), "xid": str(self.seconds), "attempt_id": attempt, "attempt_no": no} | claimed
        row = MoveRow(len(self.records.moves) + 1, number, move, state, **defaults | fields)
        self.records.moves.append(row)
        return row

    def end(
        self, number: int, attempt: str, no: int = 1, move: str = "complete", state: str = "completed", **fields: Any
    ) -> None:
        self.row(number, move, state, attempt, no)
        self.told_end(number, attempt, move=move, state=state, **fields)

    def told_end(
        self, number: int, attempt: str, outcome: str = OK, move: str = "complete", state: str = "completed", **fields: Any
    ) -> None:
        facts = {"via": "finish", "children": [], "published": False} | fields
        self.note("end", outcome, job=number, attempt=attempt, worker="w", move=move, state=state, **facts)

    def look(self, **seen: Any) -> None:
        nothing: dict[str, Any] = {"holders": [], "bare": [], "crowded": [], "not_current": [], "twins": []}
        self.note("look", **nothing | seen)

    def execution(self) -> Execution:
        return Execution(self.records, self.witness, frozenset(self.outside))


def completed(built: ExecutionBuilder, number: int = 1, **fields: Any) -> None:
    """A job's whole life, as it should be."""
    built.enqueue(number, attempt_no=1, **fields)
    built.claim(number, f"a{number}")
    built.end(number, f"a{number}")


MakeExecution = Callable[[ExecutionBuilder], None]


class Broken(list[tuple[str, MakeExecution]]):
    """Executions that break an invariant, each with its name."""

    def breaks(self, invariant: str) -> Callable[[MakeExecution], MakeExecution]:
        def add(execution: MakeExecution) -> MakeExecution:
            self.append((invariant, execution))
            return execution

        return add
