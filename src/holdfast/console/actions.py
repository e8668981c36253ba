"""Actions of the console: a button, a page that says what will happen, and a route of the API that does it.

An action never does anything itself. Its form is sent to a route of the API, in this process and as the same caller, so the
permission, the validation, the audit entry and the refusals are those of the API. Services add theirs: `console_actions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an action's form, which becomes a field of the request."""

    name: str
    label: str
    kind: Literal["text", "number", "checkbox", "textarea", "list"] = "text"  # list: texts with commas between them
    default: str = ""
    help: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A button and its form. In `path`, `says`, `target` and `back`, `{name}` is a value of the button: `{job_id}`."""

    name: str  # such as job.retry; it is in the address of the form
    label: str  # on the button
    policy: str  # the action of the API's policy: without the permission there is no button
    path: str  # of the route
    method: str = "POST"
    says: str  # what will happen, in one or two sentences
    target: str  # what it changes; a refusal is shown next to the row with this name
    back: str  # the page to return to
    fields: tuple[Field, ...] = ()
    query: tuple[str, ...] = ()  # values of the button that the route takes in its query
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields of the request that the user does not choose
    reason: Literal["body", "query", "none"] = "body"  # where the route takes the reason
    danger: bool = False  # it destroys or interrupts something
    done: str = ""  # what to say afterwards; default: the label


FORCE = Field(
    "force", "Do not wait for the handler", "checkbox", help="The job is cancelled at once; its attempt is fenced out."
)

KERNEL_ACTIONS: Final = (
    Action(
        name="job.retry",
        label="Retry",
        policy="jobs.retry",
        path="/api/jobs/{job_id}/retry",
        says="Job {job_id} goes back to the queue with one more attempt. Its earlier attempts stay in its history.",
        target="job/{job_id}",
        back="jobs/{job_id}",
        done="Job {job_id} was put back into the queue.",
    ),
    Action(
        name="job.cancel",
        label="Cancel",
        policy="jobs.cancel",
        path="/api/jobs/{job_id}/cancel",
        says="Job {job_id} is cancelled. If it is running, its handler is asked to stop at its next checkpoint.",
        target="job/{job_id}",
        back="jobs/{job_id}",
        fields=(FORCE,),
        danger=True,
        done="Job {job_id} was cancelled, or asked to stop.",
    ),
    Action(
        name="job.recover",
        label="Recover",
        policy="jobs.recover",
        path="/api/jobs/{job_id}/recover",
        says="Job {job_id} is taken from its worker, whose lease has expired, and goes back to the queue. The attempt of that "
        "worker can no longer write. Refused while the lease is valid.",
        target="job/{job_id}",
        back="jobs/{job_id}",
        done="Job {job_id} was taken from its worker and is in the queue.",
    ),
    Action(
        name="pipeline.abort",
        label="Abort",
        policy="pipelines.abort",
        path="/api/pipelines/{pipeline_id}/abort",
        says="Every job of pipeline {pipeline_id} that has not ended is cancelled or asked to stop.",
        target="pipeline/{pipeline_id}",
        back="pipelines/{pipeline_id}",
        danger=True,
        done="The pipeline is being aborted.",
    ),
    Action(
        name="kind.pause",
        label="Pause",
        policy="kinds.control",
        path="/api/job-kinds/{kind}/pause",
        says="Workers claim no more jobs of kind {kind} until it is resumed. Running jobs go on, and new jobs are accepted.",
        target="kind/{kind}",
        back="system",
        done="{kind} is paused.",
    ),
    Action(
        name="kind.drain",
        label="Drain",
        policy="kinds.control",
        path="/api/job-kinds/{kind}/drain",
        says="New jobs of kind {kind} are refused until it is resumed. Existing jobs run to their end.",
        target="kind/{kind}",
        back="system",
        danger=True,
        done="{kind} accepts no new jobs.",
    ),
    Action(
        name="kind.resume",
        label="Resume",
        policy="kinds.control",
        path="/api/job-kinds/{kind}/resume",
        says="Kind {kind} is neither paused nor drained any more.",
        target="kind/{kind}",
        back="system",
        done="{kind} was resumed.",
    ),
    Action(
        name="lock.release",
        label="Release",
        policy="locks.release",
        method="DELETE",
        path="/api/locks/{key}",
        says="Lock {key} is taken from jobs that have ended. Refused while a holder has not ended; cancel that job instead.",
        target="lock/{key}",
        back="locks",
        reason="query",
        danger=True,
        done="Lock {key} was released.",
    ),
    Action(
        name="worker.quiet",
        label="Make quiet",
        policy="workers.quiet",
        path="/api/workers/{worker_id}/quiet",
        says="Worker {worker_id} claims no more jobs from its next heartbeat on. It finishes the jobs that it holds.",
        target="worker/{worker_id}",
        back="workers",
        done="The worker claims no more jobs.",
    ),
    Action(
        name="worker.wake",
        label="Claim again",
        policy="workers.quiet",
        path="/api/workers/{worker_id}/quiet",
        fixed={"quiet": False},
        says="Worker {worker_id} claims jobs again from its next heartbeat on.",
        target="worker/{worker_id}",
        back="workers",
        done="The worker claims jobs again.",
    ),
    Action(
        name="drain.on",
        label="Drain everything",
        policy="ops.drain",
        method="PUT",
        path="/api/ops/drain",
        fixed={"enabled": True},
        says="New jobs of every kind are refused with 503 until this is undone. Existing jobs run to their end. Every page "
        "shows a banner.",
        target="drain",
        back="system",
        danger=True,
        done="New jobs are refused now.",
    ),
    Action(
        name="drain.off",
        label="Accept new jobs",
        policy="ops.drain",
        method="PUT",
        path="/api/ops/drain",
        fixed={"enabled": False},
        says="New jobs are accepted again.",
        target="drain",
        back="system",
        done="New jobs are accepted again.",
    ),
    Action(
        name="periodic.trigger",
        label="Run now",
        policy="periodic.trigger",
        path="/api/periodic/{name}/trigger",
        says="{name} runs once now, in addition to its schedule. A loop can be triggered once a minute.",
        target="periodic/{name}",
        back="periodic",
        done="{name} was triggered.",
    ),
    Action(
        name="periodic.pause",
        label="Pause",
        policy="periodic.control",
        path="/api/periodic/{name}/pause",
        says="{name} does not run on its schedule until it is resumed. It can still be run by hand.",
        target="periodic/{name}",
        back="periodic",
        done="{name} is paused.",
    ),
    Action(
        name="periodic.resume",
        label="Resume",
        policy="periodic.control",
        path="/api/periodic/{name}/resume",
        says="{name} runs on its schedule again. What was due during the pause is not run.",
        target="periodic/{name}",
        back="periodic",
        done="{name} was resumed.",
    ),
    Action(
        name="config.set",
        label="Change",
        policy="config.write",
        method="PUT",
        path="/api/config/{key}",
        says="{key} gets a new value, from now on and in every process.",
        target="config/{key}",
        back="system",
        fields=(Field("value", "New value", "number", required=True),),
        done="{key} was changed.",
    ),
)
