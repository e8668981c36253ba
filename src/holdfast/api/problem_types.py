"""Every type of problem that the API answers with: its status, its title, and how to fix it. Pure data, without FastAPI.

The kernel's are below; `catalog.py` adds those of the services. The reference page is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.registry import Registry


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A type of problem: `title` is the standard phrase, `advice` says how to fix it."""

    status: int
    title: str
    advice: str


KERNEL_PROBLEMS: Final[dict[str, ProblemType]] = {
    "invalid-request": ProblemType(422, "Invalid request", "Fix the fields that `errors` lists, and send it again."),
    "invalid-payload": ProblemType(
        422, "Invalid payload", "Fix the arguments that `detail` and `errors` name, and send it again."
    ),
    "invalid-cursor": ProblemType(422, "Invalid cursor", "Start again from the first page with the same filters."),
    "unknown-kind": ProblemType(
        422,
        "Unknown kind",
        "Use a kind that a worker has published (GET /api/kinds; `near` has similar names), "
        "or send `allow_unknown_kind: true`.",
    ),
    "key-not-given": ProblemType(
        422, "Missing key", "Send the `field`, or declare the key as a template and restart the workers."
    ),
    "validation-failed": ProblemType(422, "Validation failed", "Fix the fields that `errors` lists, and send it again."),
    "unreadable": ProblemType(400, "Malformed request", "Send well-formed HTTP with a JSON body in UTF-8."),
    "unauthenticated": ProblemType(401, "Authentication required", "Send `Authorization: Bearer <token>` with a valid token."),
    "forbidden": ProblemType(403, "Forbidden", "Use a token with one of the roles in `required_roles`."),
    "not-own-worker": ProblemType(
        403,
        "Worker of another principal",
        "Use a token with the name of the one that registered the worker, or register a new id.",
    ),
    "cross-origin": ProblemType(403, "Cross-origin request", "Call from the same origin, or send a token."),
    "reserved-kind": ProblemType(
        403,
        "Reserved kind",
        "Jobs of this kind are created by the routes of its service, or by Python code; use those.",
    ),
    "not-found": ProblemType(404, "Not found", "Check the path and the id; ended jobs are removed after the retention time."),
    "method-not-allowed": ProblemType(405, "Method not allowed", "Use one of the methods in the `Allow` header."),
    "wrong-state": ProblemType(
        409, "Not allowed in the current state", "Read the object again: its current state does not permit this."
    ),
    "not-stale": ProblemType(
        409,
        "Worker is alive",
        "Wait until the lease of its worker ends, or cancel the job. A job that does not run needs no recovery.",
    ),
    "lock-busy": ProblemType(409, "Lock is held", "Wait until the holder ends, or enqueue with `when_busy: wait`."),
    "lock-held": ProblemType(
        409, "Lock holder has not ended", "Cancel the job that holds the lock; its end releases the lock."
    ),
    "idempotency-mismatch": ProblemType(409, "Idempotency key used for another request", "Use a new `Idempotency-Key`."),
    "idempotency-in-progress": ProblemType(
        409, "First request is still running", "Send the same request again after a second."
    ),
    "cancel-requested": ProblemType(409, "Cancel requested", "End the attempt with `cancel`."),
    "already-exists": ProblemType(409, "Already exists", "Choose another name, or change the existing one."),
    "resource-has-dependencies": ProblemType(409, "Still in use", "Delete what `detail` names first."),
    "expected-count": ProblemType(409, "More jobs match than expected", "Repeat the dry run and send its count."),
    "refused": ProblemType(409, "Conflict", "Follow the instruction in `detail`."),
    "busy": ProblemType(409, "Concurrent change", "Send it again after a second."),
    "stale-attempt": ProblemType(412, "Attempt was replaced", "Stop: another attempt owns this job now."),
    "changed-meanwhile": ProblemType(412, "Precondition failed", "Read it again, and send the new ETag."),
    "too-large": ProblemType(413, "Body too large", "Store the data elsewhere and send its address."),
    "unsupported-media-type": ProblemType(
        415, "Unsupported media type", "Send the body as JSON, with `Content-Type: application/json`."
    ),
    "attempt-required": ProblemType(428, "If-Match required", "Send the attempt id of your claim in `If-Match`."),
    "rate-limited": ProblemType(429, "Too many requests", "Wait as many seconds as `Retry-After` says."),
    "internal": ProblemType(500, "Internal error", "Report the `request_id`; the server log has the details under it."),
    "draining": ProblemType(
        503, "Draining", "Wait as many seconds as `Retry-After` says; GET /api/ops/state shows who drained it."
    ),
    "database-unavailable": ProblemType(503, "Database unavailable", "Try again later; nothing was changed."),
    "too-slow": ProblemType(503, "Query timed out", "Narrow the filter and try again."),
    "too-many-streams": ProblemType(
        503, "Too many open streams", "Close some streams, or wait as many seconds as `Retry-After` says."
    ),
    "not-ready": ProblemType(503, "Not ready", "Wait; the body names what is missing."),
}
PROBLEMS: Final = Registry("problems", KERNEL_PROBLEMS)
