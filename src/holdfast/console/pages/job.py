"""One job: why it is in its state, its attempts with their fences, payload, result, error, log, effects, locks, audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote

from holdfast.api import audit
from holdfast.api.bulk import operation_of
from holdfast.api.job_changes import may_see_handle
from holdfast.console.render import Renderer
from holdfast.console.view import Shown, View
from holdfast.console.views.job import Belongings, read_belongings
from holdfast.jobs.bulk import KIND as BULK_KIND
from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED, State
from holdfast.jobs.views import explain, history, read
from holdfast.jobs.views.history import Entry
from holdfast.jobs.views.logs import read_lines
from holdfast.jobs.views.read import JobView

TAIL: Final = 200  # log lines
MOVES: Final = 500
AUDITED: Final = 20


async def show(view: View) -> Shown:
    """Everything about one job."""
    job_id = JobId(view.path_number("job_id"))
    job = await read.get_job(view.conn, job_id)
    moves = await history.history(view.conn, job_id, most=MOVES)
    belongings = await read_belongings(view.conn, job_id)
    can_read_logs = view.may("jobs.read_logs")
    lines = await read_lines(view.conn, job_id, tail=TAIL, limit=TAIL) if can_read_logs else []
    audited = await audit.read(view.conn, limit=AUDITED, object=f"job/{job_id}") if view.may("audit.read") else []
    renderer: Renderer = view.request.app.state.renderer
    values = {
        "job": job,
        "sentence": await explain.explain(view.conn, job_id),
        "stale": is_stale(job, belongings),
        "attempts": attempts_of(job, moves),
        "shortened": len(moves) == MOVES,
        "belongings": belongings,
        "lines": lines,
        "can_read_logs": can_read_logs,
        "can_read_payload": view.may("jobs.read_payload"),
        "can_read_handle": may_see_handle(job, view.caller),
        "audited": audited[:AUDITED],
        "off": refusals(job, belongings, view.now),
        "links": external_links(renderer.links, job),
        "operation": operation_of(job) if job.kind == BULK_KIND and view.may("jobs.read_payload") else None,
        "ended": State(job.state) in ENDED,
    }
    return Shown("job.html", values, title=f"Job {job_id}")


# ---------------------------------------------------------------------------------------------------------------------
# Decisions
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Attempt:
    """An attempt, or what happened between two: the moves of one row of the timeline."""

    number: int | None
    id: str | None
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime | None = None
    outcome: str = ""
    moves: list[Entry] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()


def attempts_of(job: JobView, moves: Sequence[Entry]) -> list[Attempt]:
    """The timeline, oldest first: one row per attempt with its fence, and moves between attempts on their own. Pure."""
    found: list[Attempt] = []
    for move in moves:
        last = found[-1] if found else None
        if last is None or last.id != move.attempt_id:
            found.append(Attempt(move.attempt_no, move.attempt_id, move.worker_id, move.claimed_at))
        current = found[-1]
        current.moves.append(move)
        current.started_at = current.started_at or move.claimed_at
        if move.attempt_id is not None:
            current.ended_at, current.outcome = move.at, move.state
    if job.attempt_id is not None and (not found or found[-1].id != job.attempt_id):
        found.append(Attempt(job.attempt_no, job.attempt_id, job.worker_id, job.claimed_at, outcome=job.state))
    return found


def is_stale(job: JobView, belongings: Belongings) -> bool:
    """Whether its worker's lease has expired. Pure."""
    return job.state == State.RUNNING and belongings.worker is not None and not belongings.worker["alive"]


def refusals(job: JobView, belongings: Belongings, now: datetime) -> dict[str, str]:
    """Why a button is not possible now; empty: it is. The API decides; this only says it before. Pure."""
    state = State(job.state)
    worker = belongings.worker
    recover = "" if is_stale(job, belongings) else "Only a running job whose worker's lease has expired can be recovered."
    if state is State.RUNNING and worker is not None and worker["alive"]:
        left: timedelta = worker["lease_until"] - now
        recover = f"The lease of its worker is valid for another {max(0, int(left.total_seconds()))} s."
    return {
        "retry": "" if state in (State.FAILED, State.CANCELLED) else "Only failed and cancelled jobs can be retried.",
        "cancel": "The job has ended." if state in ENDED else "",
        "recover": recover,
    }


def external_links(templates: Mapping[str, str], job: JobView) -> list[tuple[str, str]]:
    """Links to other systems, from the templates of the settings. Pure."""
    fields = {name: quote(str(getattr(job, name) or ""), safe="") for name in ("kind", "queue", "worker_id", "pipeline_id")}
    return [(name, text.format_map({**fields, "job_id": job.id})) for name, text in templates.items()]
