"""`holdfast job list | show | explain | history | logs | enqueue | wait | retry | cancel | recover | bulk`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from holdfast.cli.job_logs import JobId, logs_command
from holdfast.cli.job_shapes import CARD, CHILDREN, HISTORY, MOST_CHILDREN, SHAPE
from holdfast.cli.traceback import print_traceback
from holdfast.jobs.states import State
from holdfast.toolkit.cli.arguments import filters_of, job_id_of, payload_of
from holdfast.toolkit.cli.bulk import act_in_bulk
from holdfast.toolkit.cli.exit_codes import Exit, WaitTimeout, exit_of
from holdfast.toolkit.cli.verb import All, Limit, OptionalReason, Reason, Session, Since, Yes, verb
from holdfast.toolkit.cli.waiting import Every, Timeout, Wait, Watch, end_with, seconds_of, wait_for, watch_rows
from holdfast.toolkit.client.problems import ApiError

app = typer.Typer(help="Jobs: list, show, explain, enqueue, wait, retry, cancel, recover.", no_args_is_help=True)

CONDITIONS = ["stale", "retrying", "waiting_lock", "waiting_parents", "cancelling", "quarantined"]
JobIds = Annotated[list[str], typer.Argument(help="Job ids, or @latest.", metavar="ID...", show_default=False)]
Grant = Annotated[int, typer.Option("--grant", min=1, help="At least this many further attempts.")]


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@verb(app, "list")
def list_command(
    session: Session,
    filter: Annotated[
        str | None,
        typer.Option("--filter", "-f", help="Only jobs that match, such as 'state:failed kind:exports.run'; see above."),
    ] = None,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.", autocompletion=lambda: [*State])] = None,
    kind: Annotated[str | None, typer.Option(help="Only jobs of this kind.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    condition: Annotated[
        str | None,
        typer.Option(
            help="Only jobs with this condition: stale, retrying, waiting_lock, cancelling, quarantined, …",
            autocompletion=lambda: CONDITIONS,
        ),
    ] = None,
    since: Since = None,
    search: Annotated[
        str | None, typer.Option(help="Only jobs with this text in their kind, queue, step, slot, message or error.")
    ] = None,
    limit: Limit = 50,
    all: All = False,
    watch: Watch = False,
    interval: Every = 2.0,
) -> None:
    """List jobs, newest first.

    A filter is a list of name:value. Names: state, kind, queue, condition, pipeline_id, worker_id, slot_key,
    parent_id, fingerprint, created_after, created_before, and age, such as age:>1h.
    """
    named = {"state": state, "kind": kind, "queue": queue, "condition": condition, "q": search}
    filters = filters_of(session, filter) | {name: value for name, value in named.items() if value is not None}
    if since is not None:
        filters |= filters_of(session, f"age:<{since}")
    most = None if all else limit

    def fetch() -> list[dict[str, Any]]:
        return session.listed("/api/jobs", most=most, **filters)

    if watch:
        watch_rows(session, SHAPE, fetch, interval)
    found = fetch()
    session.rows(SHAPE, found)
    if len(found) == most:
        session.out.say(f"These are the newest {most}; there may be more: pass --limit or --all", "dim")


@verb(app, "show")
def show_command(session: Session, job: JobId) -> None:
    """Show one job, its history, and the traceback of its last failure."""
    job_id = job_id_of(session, job)
    found = session.get(f"/api/jobs/{job_id}")
    session.one(CARD, found)
    if session.out.for_people:
        session.out.console.print()
        session.rows(HISTORY, session.get(f"/api/jobs/{job_id}/history"))
        children = session.listed("/api/jobs", most=MOST_CHILDREN, parent_id=job_id)
        if children:
            session.out.console.print(f"\nChildren (the newest {MOST_CHILDREN} at most):")
            session.rows(CHILDREN, children)
        print_traceback(session, found)
    session.out.hint(f"holdfast job logs {job_id}")


@verb(app, "explain")
def explain_command(session: Session, job: JobId) -> None:
    """Explain why a job is in its state: what it waits for, who holds it, and until when."""
    session.out.value("sentence", session.get(f"/api/jobs/{job_id_of(session, job)}/explain")["sentence"])


@verb(app, "events", hidden=True)
@verb(app, "history")
def history_command(
    session: Session,
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
) -> None:
    """List the history of a job, oldest first: attempts, errors, and actions of operators."""
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
    """The history of a job, again and again until the job has ended."""
    is_over = False
    while not is_over:
        with suppress(WaitTimeout):
            is_over = bool(wait_for(session, [job_id], "1s"))
        yield session.get(f"/api/jobs/{job_id}/history")


verb(app, "logs")(logs_command)


# ---------------------------------------------------------------------------------------------------------------------
# Changing
# ---------------------------------------------------------------------------------------------------------------------


@verb(app, "submit", hidden=True)  # a common synonym
@verb(app, "enqueue")
def enqueue_command(
    session: Session,
    kind: Annotated[str, typer.Argument(help="The kind of the job.", show_default=False)],
    payload: Annotated[
        list[str] | None,
        typer.Option("--payload", "-p", help="key=text, key:=json, a JSON object, @file.json or @- for standard input."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue; default: what the kind declares.")] = None,
    priority: Annotated[int | None, typer.Option(help="A smaller number runs first; default: what the kind declares.")] = None,
    delay: Annotated[str | None, typer.Option(help="Start no earlier than this long from now, such as 5m.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Errors after which the job fails.")] = None,
    unique_key: Annotated[
        str | None, typer.Option(help="Return the waiting job of this kind with this key instead of a new one.")
    ] = None,
    slot_key: Annotated[str | None, typer.Option(help="The slot key, if the kind declares it as a function.")] = None,
    lock: Annotated[
        list[str] | None,
        typer.Option("--lock", help="An exclusive lock in addition to those of the kind; may be repeated."),
    ] = None,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Enqueue with defaults if no worker has published the kind.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: repeating the call returns the same job.")] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Enqueue a job with the options that its kind declares. `holdfast kind show` shows them."""
    body = {
        "kind": kind,
        "payload": payload_of(payload or []),
        "queue": queue,
        "priority": priority,
        "delay_seconds": seconds_of(delay),
        "max_attempts": max_attempts,
        "unique_key": unique_key,
        "slot_key": slot_key,
        "locks": [{"key": one} for one in lock] if lock else None,
        "allow_unknown_kind": allow_unknown or None,
    }
    made = session.act("POST", "/api/jobs", body, key=key)
    if not made["created"]:
        session.out.say(f"Job {made['id']} exists already.")
    if wait:
        _wait_and_end(session, [made["id"]], timeout)
    session.out.rows(SHAPE, [made["job"]], session.transport, single=True)
    session.out.hint(f"holdfast job wait {made['id']}")


@verb(app, "wait")
def wait_command(session: Session, jobs: JobIds, timeout: Timeout = None) -> None:
    """Wait until jobs have ended. Exit code: 0 all completed, 1 one failed, 9 one was cancelled, 124 timeout."""
    _wait_and_end(session, [job_id_of(session, job) for job in jobs], timeout)


def _wait_and_end(session: Session, job_ids: list[int], timeout: str | None) -> None:
    ended = wait_for(session, job_ids, timeout)
    session.rows(SHAPE, ended)
    end_with(ended)
    raise typer.Exit(Exit.OK)


@verb(app, "retry")
def retry_command(
    session: Session, jobs: JobIds, reason: OptionalReason = None, grant: Grant = 1, wait: Wait = False, timeout: Timeout = None
) -> None:
    """Retry failed or cancelled jobs. Their earlier attempts stay in the history."""
    _each(session, jobs, "retry", {"reason": reason, "grant": grant}, wait, timeout)


@verb(app, "cancel")
def cancel_command(
    session: Session,
    jobs: JobIds,
    reason: OptionalReason = None,
    force: Annotated[bool, typer.Option("--force", help="Do not wait for the handler; take the job from it.")] = False,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Cancel jobs. A running job is asked to stop."""
    session.confirm(f"Cancel {_named(jobs)}?", yes)
    _each(session, jobs, "cancel", {"reason": reason, "force": force}, wait, timeout)


@verb(app, "recover")
def recover_command(session: Session, jobs: JobIds, reason: Reason, grant: Grant = 1) -> None:
    """Take jobs from a worker that was lost, and queue them again. Late writes of the worker are refused."""
    _each(session, jobs, "recover", {"reason": reason, "grant": grant}, False, None)


def _each(session: Session, jobs: list[str], act: str, body: dict[str, Any], wait: bool, timeout: str | None) -> None:
    """Do one action on several jobs; a refusal does not stop the others. If all are refused, the first sets the exit code."""
    changed, refused = [], None
    for job in jobs:
        job_id = job_id_of(session, job)
        try:
            changed.append(_act(session, f"/api/jobs/{job_id}/{act}", body))
        except ApiError as error:
            if len(jobs) == 1:
                raise
            refused = refused or error
            session.out.say(f"job {job_id}: {error.detail}", "red")
    if wait and changed:
        changed = wait_for(session, [job["id"] for job in changed], timeout)
    session.rows(SHAPE, changed)
    if refused is not None:
        raise typer.Exit(Exit.PARTIAL if changed else exit_of(refused))
    if wait:
        end_with(changed)


def _act(session: Session, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One action. If the API requires a reason and there is a terminal, ask for it, once for all jobs."""
    try:
        changed: dict[str, Any] = session.act("POST", path, body)
    except ApiError as error:
        if not error.names_field("reason") or not sys.stdin.isatty():
            raise
        body["reason"] = typer.prompt("Reason (recorded in the audit log)", err=True)
        changed = session.act("POST", path, body)
    return changed


@verb(app, "bulk")
def bulk_command(
    session: Session,
    action: Annotated[str, typer.Argument(help="retry, cancel or recover.", show_default=False)],
    filter: Annotated[
        str,
        typer.Option(
            "--filter", "-f", help="Which jobs, such as 'kind:exports.run age:<1d'; names as in `job list`.", show_default=False
        ),
    ],
    reason: Reason,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    expect: Annotated[
        int | None, typer.Option(min=0, help="Change nothing if more than this many match; no confirmation.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it has finished.")] = True,
    yes: Yes = False,
) -> None:
    """Retry, cancel or recover all jobs that match a filter. Shows first what would change."""
    body = {"action": action, "filter": filters_of(session, filter), "reason": reason}
    act_in_bulk(session, "/api/jobs/bulk", body, action, dry_run=dry_run, yes=yes, expect=expect, wait=wait)


def _named(jobs: list[str]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs ({', '.join(jobs[:5])}{', …' if len(jobs) > 5 else ''})"
