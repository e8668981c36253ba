"""How jobs and their history are printed."""

from __future__ import annotations

from holdfast.telemetry.error_text import one_line
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.waiting import ENDED


def condition_of(job: Row) -> str | None:
    """What is special about a job beside its state. Pure."""
    if job["cancel_requested_at"] and job["state"] in ("running", "submitted"):
        return "cancelling"
    if job["state"] == "failed" and job["crashes"] >= job["max_crashes"]:
        return "quarantined"
    if job["state"] == "pending" and job["errors"]:
        return "retrying"
    return f"waiting for {job['waiting_for']}" if job["state"] == "blocked" and job["waiting_for"] else None


def progress_of(job: Row) -> float | None:
    """The progress; a completed job is at 100 %, whatever it reported last. Pure."""
    share: float | None = job["progress"]
    return share if share is None or job["state"] != "completed" else 1.0


def note_of(job: Row) -> str | None:
    """Condition, progress message and error of a job, in one line. Pure.

    The message of an ended job is what it last reported while it ran, so it is not shown.
    """
    message = job["message"] if job["state"] not in ENDED else None
    parts = [condition_of(job), message, one_line(job["error"])]
    return "; ".join(part for part in parts if part) or None


SHAPE = Shape(
    "job",
    [
        Column("ID", "id"),
        Column("KIND", "kind"),
        Column("STATE", "state", Kind.WORD),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("DONE", progress_of, Kind.PERCENT),
        Column("CREATED", "created_at", Kind.TIME),
        Column("NOTE", note_of, long=True),
        Column("QUEUE", "queue", wide=True),
        Column("PRIORITY", "priority", Kind.NUMBER, wide=True),
        Column("RUN AFTER", "run_after", Kind.TIME, wide=True),
        Column("CLAIMED", "claimed_at", Kind.TIME, wide=True),
        Column("FINISHED", "finished_at", Kind.TIME, wide=True),
        Column("WORKER", "worker_id", wide=True),
        Column("PIPELINE", "pipeline_id", wide=True),
    ],
    empty="No matching jobs.",
)

CARD = Shape(
    "job",
    [
        Column("JOB", "id"),
        Column("KIND", "kind"),
        Column("STATE", "state", Kind.WORD),
        Column("CONDITION", condition_of, Kind.WORD),
        Column("PROGRESS", progress_of, Kind.PERCENT),
        Column("MESSAGE", "message"),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("ERRORS", lambda job: f"{job['errors']} of {job['max_attempts']}"),
        Column("CRASHES", lambda job: f"{job['crashes']} of {job['max_crashes']}"),
        Column("CAUSE", "cause"),
        Column("ERROR", "error"),
        Column("QUEUE", "queue"),
        Column("PRIORITY", "priority", Kind.NUMBER),
        Column("CREATED", "created_at", Kind.TIME),
        Column("RUN AFTER", "run_after", Kind.TIME),
        Column("CLAIMED", "claimed_at", Kind.TIME),
        Column("FINISHED", "finished_at", Kind.TIME),
        Column("CANCEL REQUESTED", "cancel_requested_at", Kind.TIME),
        Column("NEXT POLL", "next_poll_at", Kind.TIME),
        Column("WORKER", "worker_id"),
        Column("FENCE", "attempt_id"),
        Column("SLOT", "slot_key"),
        Column("PIPELINE", "pipeline_id"),
        Column("PARENT", "parent_id"),
        Column("STEP", "step"),
        Column("HANDLE", "handle"),
        Column("PAYLOAD", "payload"),
        Column("RESULT", "result"),
    ],
)


MOST_CHILDREN = 20
CHILDREN = Shape(
    "job",
    [
        Column("ID", "id"),
        Column("STEP", "step"),
        Column("KIND", "kind"),
        Column("STATE", "state", Kind.WORD),
        Column("FINISHED", "finished_at", Kind.TIME),
    ],
)


def story_of(entry: Row) -> str | None:
    """Actor, reason and error of an entry, in one line. Pure."""
    detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
    error = one_line(detail.get("error"))
    parts = [entry["actor"], entry["reason"], detail.get("cause"), error]
    return ": ".join(str(part) for part in parts if part) or None


HISTORY = Shape(
    "move",
    [
        Column("AT", "at", Kind.TIME),
        Column("MOVE", "move"),
        Column("STATE", "state", Kind.WORD),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("NOTE", story_of, long=True),
        Column("WORKER", "worker_id", wide=True),
        Column("FENCE", "attempt_id", wide=True),
        Column("CLAIMED", "claimed_at", Kind.TIME, wide=True),
        Column("DETAIL", "detail", wide=True),
    ],
    key="xid",
    empty="No history yet.",
)
