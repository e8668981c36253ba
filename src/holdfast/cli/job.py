"""`holdfast job list | show | explain | history | logs | enqueue | wait | retry | cancel | recover | bulk`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from holdfast.cli.asking import filters_of, job_id_of, payload_of
from holdfast.cli.bulk import act_in_bulk
from holdfast.cli.exits import Exit, GaveUp, Told, exit_of
from holdfast.cli.job_logs import JobId, logs_command
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.verb import All, Limit, Reason, Session, Since, Yes, verb
from holdfast.cli.waiting import Every, Timeout, Wait, Watch, end_with, short_length, wait_for, watch_rows
from holdfast.jobs.states import State

app = typer.Typer(help="Jobs: look at them, enqueue, wait, retry, cancel, recover.", no_args_is_help=True)

CONDITIONS = ["stale", "retrying", "waiting_lock", "waiting_parents", "cancelling", "quarantined"]
JobIds = Annotated[list[str], typer.Argument(help="Numbers of jobs, or @latest.", metavar="ID...", show_default=False)]
Why = Annotated[str | None, typer.Option("--reason", help="Why; it stands in the audit.")]
Grant = Annotated[int, typer.Option("--grant", min=1, help="How many attempts it gets at least.")]


def condition_of(job: Row) -> str | None:
    """What people look for and what is not a state. Pure."""
    if job["cancel_requested_at"] and job["state"] in ("running", "submitted"):
        return "cancelling"
    if job["state"] == "failed" and job["crashes"] >= job["max_crashes"]:
        return "quarantined"
    if job["state"] == "pending" and job["errors"]:
        return "retrying"
    return f"waits for {job['waiting_for']}" if job["state"] == "blocked" and job["waiting_for"] else None


def note_of(job: Row) -> str | None:
    """What else there is to say about a job, shortest first. Pure."""
    last_line = (job["error"] or "").strip().splitlines()[-1:]
    parts = [condition_of(job), job["message"], *last_line]
    return "; ".join(part for part in parts if part) or None


SHAPE = Shape(
    "job",
    [
        Column("ID", "id"),
        Column("KIND", "kind"),
        Column("STATE", "state", Kind.WORD),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("DONE", "progress", Kind.PERCENT),
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
    empty="No such jobs.",
)

CARD = Shape(
    "job",
    [
        Column("JOB", "id"),
        Column("KIND", "kind"),
        Column("STATE", "state", Kind.WORD),
        Column("CONDITION", condition_of, Kind.WORD),
        Column("PROGRESS", "progress", Kind.PERCENT),
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
        Column("CANCEL ASKED", "cancel_requested_at", Kind.TIME),
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


def story_of(entry: Row) -> str | None:
    """Who and why, or what went wrong, in a move. Pure."""
    detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
    error = str(detail.get("error") or "").strip().splitlines()[-1:]
    parts = [entry["actor"], entry["reason"], detail.get("cause"), *error]
    return ": ".join(str(part) for part in parts if part) or None


HISTORY = Shape(
    "move",
    [
        Column("AT", "at", Kind.TIME),
        Column("MOVE", "move"),
        Column("STATE", "state", Kind.WORD),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("STORY", story_of, long=True),
        Column("WORKER", "worker_id", wide=True),
        Column("FENCE", "attempt_id", wide=True),
        Column("CLAIMED", "claimed_at", Kind.TIME, wide=True),
        Column("DETAIL", "detail", wide=True),
    ],
    key="xid",
    empty="Nothing has happened to it yet.",
)


# ---------------------------------------------------------------------------------------------------------------------
# Looking
# ---------------------------------------------------------------------------------------------------------------------


@verb(app, "list")
def list_command(
    session: Session,
    filter: Annotated[
        str | None, typer.Option("--filter", "-f", help="Which ones, such as 'state:failed kind:export'; see below.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="Only those in this state.", autocompletion=lambda: [*State])] = None,
    kind: Annotated[str | None, typer.Option(help="Only those of this kind.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only those of this queue.")] = None,
    condition: Annotated[
        str | None,
        typer.Option(help="stale, retrying, waiting_lock, cancelling, quarantined, …", autocompletion=lambda: CONDITIONS),
    ] = None,
    since: Since = None,
    search: Annotated[str | None, typer.Option(help="A part of a kind, queue, step, slot, message or error.")] = None,
    limit: Limit = 50,
    all: All = False,
    watch: Watch = False,
    interval: Every = 2.0,
) -> None:
    """List jobs, newest first.

    A filter has words of the form name:value. Names: state, kind, queue, condition, pipeline_id, worker_id, slot_key,
    parent_id, fingerprint, created_after, created_before, and age, such as age:>1h.
    """
    named = {"state": state, "kind": kind, "queue": queue, "condition": condition, "q": search}
    filters = filters_of(session, filter) | {name: value for name, value in named.items() if value is not None}
    if since is not None:
        filters |= filters_of(session, f"age:<{since}")
    most = None if all else limit

    def look() -> list[dict[str, Any]]:
        return session.listed("/api/jobs", most=most, **filters)

    if watch:
        watch_rows(session, SHAPE, look, interval)
    found = look()
    session.rows(SHAPE, found)
    if len(found) == most:
        session.out.say(f"The newest {most}; there may be more: --limit, --all", "dim")


@verb(app, "show")
def show_command(session: Session, job: JobId) -> None:
    """Show one job and what happened to it."""
    job_id = job_id_of(session, job)
    session.one(CARD, session.get(f"/api/jobs/{job_id}"))
    if session.out.for_people:
        session.out.console.print()
        session.rows(HISTORY, session.get(f"/api/jobs/{job_id}/history"))
    session.out.hint(f"holdfast job logs {job_id}")


@verb(app, "explain")
def explain_command(session: Session, job: JobId) -> None:
    """Say why a job is where it is, who holds what, and until when."""
    session.out.value("sentence", session.get(f"/api/jobs/{job_id_of(session, job)}/explain")["sentence"])


@verb(app, "events", hidden=True)
@verb(app, "history")
def history_command(
    session: Session,
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
) -> None:
    """List every move of a job, oldest first: attempts, errors, and what people did."""
    job_id = job_id_of(session, job)
    if not follow:
        session.rows(HISTORY, session.get(f"/api/jobs/{job_id}/history"))
        return
    shown = 0
    for entries in _growing(session, job_id):
        if entries[shown:]:
            session.rows(HISTORY, entries[shown:])
        shown = len(entries)


def _growing(session: Session, job_id: int) -> Iterator[list[dict[str, Any]]]:
    """The history of a job again and again, until the job has ended."""
    is_over = False
    while not is_over:
        with suppress(GaveUp):
            is_over = bool(wait_for(session, [job_id], "1s"))
        yield session.get(f"/api/jobs/{job_id}/history")


verb(app, "logs")(logs_command)


# ---------------------------------------------------------------------------------------------------------------------
# Acting
# ---------------------------------------------------------------------------------------------------------------------


@verb(app, "submit", hidden=True)  # what fingers type
@verb(app, "enqueue")
def enqueue_command(
    session: Session,
    kind: Annotated[str, typer.Argument(help="What to run.", show_default=False)],
    payload: Annotated[
        list[str] | None,
        typer.Option("--payload", "-p", help="key=text, key:=json, a JSON object, @file.json or @- for standard input."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue; default: what the kind declares.")] = None,
    priority: Annotated[int | None, typer.Option(help="Smaller runs first; default: what the kind declares.")] = None,
    delay: Annotated[str | None, typer.Option(help="Not before this long from now, such as 5m.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="How many errors fail it.")] = None,
    unique_key: Annotated[str | None, typer.Option(help="No second waiting job of this kind with this key.")] = None,
    slot_key: Annotated[str | None, typer.Option(help="The slot, if the kind declares it as a function.")] = None,
    lock: Annotated[
        list[str] | None, typer.Option("--lock", help="An exclusive lock beside those that the kind declares; repeat for more.")
    ] = None,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Enqueue it with defaults if no worker has published the kind.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same call again gives the same job.")] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Enqueue a job as its kind declares it: with its locks, keys, queue and budgets. `holdfast kind show` shows them."""
    asked = {
        "kind": kind,
        "payload": payload_of(payload or []),
        "queue": queue,
        "priority": priority,
        "delay_seconds": short_length(delay),
        "max_attempts": max_attempts,
        "unique_key": unique_key,
        "slot_key": slot_key,
        "locks": [{"key": one} for one in lock] if lock else None,
        "allow_unknown_kind": allow_unknown or None,
    }
    made = session.act("POST", "/api/jobs", asked, key=key)
    if not made["created"]:
        session.out.say(f"Job {made['id']} was there already.")
    if wait:
        _wait_and_end(session, [made["id"]], timeout)
    session.out.rows(SHAPE, [made["job"]], session.way, single=True)
    session.out.hint(f"holdfast job wait {made['id']}")


@verb(app, "wait")
def wait_command(session: Session, jobs: JobIds, timeout: Timeout = None) -> None:
    """Wait until jobs have ended. The exit code says how: 0 all completed, 1 one failed, 9 one was cancelled, 124 timeout."""
    _wait_and_end(session, [job_id_of(session, job) for job in jobs], timeout)


def _wait_and_end(session: Session, job_ids: list[int], timeout: str | None) -> None:
    ended = wait_for(session, job_ids, timeout)
    session.rows(SHAPE, ended)
    end_with(ended)
    raise typer.Exit(Exit.OK)


@verb(app, "retry")
def retry_command(
    session: Session, jobs: JobIds, reason: Why = None, grant: Grant = 1, wait: Wait = False, timeout: Timeout = None
) -> None:
    """Run failed or cancelled jobs once more; their attempts stay on record."""
    _each(session, jobs, "retry", {"reason": reason, "grant": grant}, wait, timeout)


@verb(app, "cancel")
def cancel_command(
    session: Session,
    jobs: JobIds,
    reason: Why = None,
    force: Annotated[bool, typer.Option("--force", help="Do not wait for its handler: take the job from it.")] = False,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Stop jobs; running ones are asked to."""
    session.confirm(f"Cancel {_named(jobs)}?", yes)
    _each(session, jobs, "cancel", {"reason": reason, "force": force}, wait, timeout)


@verb(app, "recover")
def recover_command(session: Session, jobs: JobIds, reason: Reason, grant: Grant = 1) -> None:
    """Take jobs from a holder that went silent, and put them back into the queue. Its late writes are refused."""
    _each(session, jobs, "recover", {"reason": reason, "grant": grant}, False, None)


def _each(session: Session, jobs: list[str], act: str, body: dict[str, Any], wait: bool, timeout: str | None) -> None:
    """Do one act to several jobs; one that refuses does not stop the others. If all do, the first refusal is the exit code."""
    changed, refused = [], None
    for job in jobs:
        job_id = job_id_of(session, job)
        try:
            changed.append(_act(session, f"/api/jobs/{job_id}/{act}", body))
        except Told as told:
            if len(jobs) == 1:
                raise
            refused = refused or told
            session.out.say(f"job {job_id}: {told}", "red")
    if wait and changed:
        changed = wait_for(session, [job["id"] for job in changed], timeout)
    session.rows(SHAPE, changed)
    if refused is not None:
        raise typer.Exit(Exit.PARTIAL if changed else exit_of(refused))
    if wait:
        end_with(changed)


def _act(session: Session, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One act. Somebody at a terminal who did not say why is asked, if whoever keeps the audit wants to know; once for all."""
    try:
        changed: dict[str, Any] = session.act("POST", path, body)
    except Told as told:
        if not told.wants("reason") or not sys.stdin.isatty():
            raise
        body["reason"] = typer.prompt("Why? It stands in the audit", err=True)
        changed = session.act("POST", path, body)
    return changed


@verb(app, "bulk")
def bulk_command(
    session: Session,
    action: Annotated[str, typer.Argument(help="retry, cancel or recover.", show_default=False)],
    filter: Annotated[
        str, typer.Option("--filter", "-f", help="Which ones, such as 'kind:export age:<1d'.", show_default=False)
    ],
    reason: Reason,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be touched.")] = False,
    expect: Annotated[int | None, typer.Option(min=0, help="Touch nothing if more than so many match; does not ask.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")] = True,
    yes: Yes = False,
) -> None:
    """Retry, cancel or recover every job that a filter finds. What it would touch is shown first."""
    body = {"action": action, "filter": filters_of(session, filter), "reason": reason}
    act_in_bulk(session, "/api/jobs/bulk", body, action, dry_run=dry_run, yes=yes, expect=expect, wait=wait)


def _named(jobs: list[str]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs ({', '.join(jobs[:5])}{', …' if len(jobs) > 5 else ''})"
