"""The permissions of each role, as one table. The code, the reference page and the test of every route with every role use it.

Deny by default: a route without an action cannot be declared, and an action without a rule is refused when the app is built.
These are the rules of the kernel; `catalog.py` adds those of the services.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.registry import Registry


class Role(StrEnum):
    """The role of a principal."""

    VIEWER = "viewer"  # reads, without payloads and results
    ANALYST = "analyst"  # enqueues, and controls its own jobs
    OPS = "ops"  # controls everything
    ADMIN = "admin"  # also tokens and configuration
    WORKER = "worker"  # a machine that runs jobs; may use only the worker protocol
    AUTOSCALER = "autoscaler"  # a machine that reads the demand


@dataclass(frozen=True, slots=True)
class Rule:
    """An action, and the roles that may do it."""

    says: str
    roles: frozenset[Role] = frozenset()
    own: frozenset[Role] = frozenset()  # these may do it only to their own objects
    anyone: bool = False  # no authentication
    permission: str | None = None  # a permission that an identity provider may grant separately
    needs_reason: bool = False
    asks_why: bool = False  # a reason is required for objects of another owner; see docs/decisions/0016


V, A, O, D = Role.VIEWER, Role.ANALYST, Role.OPS, Role.ADMIN  # noqa: E741
W, S = Role.WORKER, Role.AUTOSCALER
READERS = frozenset({V, A, O, D})
MAKERS = frozenset({A, O, D})
OPERATORS = frozenset({O, D})
ADMINS = frozenset({D})
OWN = frozenset({A})

KERNEL_POLICY: Final[dict[str, Rule]] = {
    "health.read": Rule("check whether the process is up and ready", anyone=True),
    "index.read": Rule("read the start page", anyone=True),
    "problems.read": Rule("read the descriptions of problem types", anyone=True),
    "login": Rule("sign in with a one-time link", anyone=True),
    "openapi.read": Rule("read the OpenAPI document", frozenset(Role)),
    "metrics.read": Rule("scrape the metrics", READERS | {S}),
    "demand.read": Rule("read the demand for workers", READERS | {S}),
    "whoami.read": Rule("read its own name and role", frozenset(Role)),
    "jobs.read": Rule("read jobs, their attempts and their events", READERS),
    "jobs.read_payload": Rule("see payloads and results of jobs", MAKERS),
    # An external engine returns rows to any client with the address in a handle.
    "jobs.read_handle": Rule("see handles of jobs", OPERATORS, OWN),
    "jobs.read_logs": Rule("read the log lines of handlers", MAKERS),
    "jobs.enqueue": Rule("enqueue a job", MAKERS),
    "jobs.cancel": Rule("cancel a job", OPERATORS, OWN, asks_why=True),
    "jobs.retry": Rule("run an ended job again", OPERATORS, OWN, asks_why=True),
    "jobs.recover": Rule(
        "take a job from a worker whose lease has expired",
        OPERATORS,
        permission="backoffice.data_management.sync",
        needs_reason=True,
    ),
    "jobs.bulk": Rule("cancel, retry or recover many jobs by a filter", OPERATORS, needs_reason=True),
    "failures.read": Rule("read failures, grouped", READERS),
    "pipelines.read": Rule("read pipelines", READERS),
    "pipelines.abort": Rule("abort a pipeline", OPERATORS, needs_reason=True),
    "kinds.read": Rule("read the kinds of jobs", READERS),
    "kinds.control": Rule("pause, drain or resume a kind", OPERATORS, needs_reason=True),
    "locks.read": Rule("read locks", READERS),
    "locks.release": Rule("release a lock whose holder has ended", OPERATORS, needs_reason=True),
    "workers.read": Rule("read workers", READERS),
    "workers.quiet": Rule("make a worker claim no more jobs, or claim again", OPERATORS, needs_reason=True),
    "ops.read": Rule("read the overall state", READERS),
    "ops.drain": Rule("accept no new jobs, or accept them again", OPERATORS, needs_reason=True),
    "periodic.read": Rule("read the periodic loops", READERS),
    "periodic.trigger": Rule("run a periodic loop now", OPERATORS, needs_reason=True),
    "periodic.control": Rule("pause or resume a periodic loop", OPERATORS, needs_reason=True),
    "config.read": Rule("read the configuration", OPERATORS),
    "config.write": Rule("change the configuration", ADMINS, needs_reason=True),
    "audit.read": Rule("read the audit log", OPERATORS),
    "tokens.read": Rule("list the API tokens", ADMINS),
    "tokens.write": Rule("create and revoke API tokens", ADMINS, needs_reason=True),
    "work": Rule("claim, renew, report and finish jobs: the worker protocol", frozenset({W})),
}
POLICY: Final = Registry("actions", KERNEL_POLICY)


def allows(action: str, role: Role | None, *, scopes: frozenset[str] | None, permissions: frozenset[str]) -> bool:
    """Whether this role may do this, perhaps only to its own objects. Pure."""
    rule = POLICY[action]
    if rule.anyone or (rule.permission is not None and rule.permission in permissions):
        return True
    if role is None or role not in rule.roles | rule.own:
        return False
    return scopes is None or action in scopes or rule.permission in scopes


def only_own(action: str, role: Role | None, permissions: frozenset[str]) -> bool:
    """Whether this role may do this only to its own objects. Pure."""
    rule = POLICY[action]
    return role in rule.own and role not in rule.roles and rule.permission not in permissions
