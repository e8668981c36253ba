"""Who may do what: one table. It drives the code, the reference page and the test of every route by every role.

Deny by default: a route without an action cannot be declared, and an action that is not here does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a principal is to us."""

    VIEWER = "viewer"  # looks, without payloads and results
    ANALYST = "analyst"  # enqueues, and steers what is its own
    OPS = "ops"  # steers everything
    ADMIN = "admin"  # also tokens and configuration
    WORKER = "worker"  # a machine that runs jobs; speaks the worker protocol and nothing else
    AUTOSCALER = "autoscaler"  # a machine that needs one number


@dataclass(frozen=True, slots=True)
class Rule:
    """What one action is, and who may do it."""

    says: str
    roles: frozenset[Role] = frozenset()
    own: frozenset[Role] = frozenset()  # these may do it only to what they made themselves
    anyone: bool = False  # no credentials are asked for
    permission: str | None = None  # another name for it, which an identity provider may grant by itself
    needs_reason: bool = False
    asks_why: bool = False  # who does it to what somebody else made must say why; see docs/decisions/0016


V, A, O, D = Role.VIEWER, Role.ANALYST, Role.OPS, Role.ADMIN  # noqa: E741
W, S = Role.WORKER, Role.AUTOSCALER
READERS = frozenset({V, A, O, D})
MAKERS = frozenset({A, O, D})
OPERATORS = frozenset({O, D})
ADMINS = frozenset({D})
OWN = frozenset({A})

POLICY: Final[Mapping[str, Rule]] = {
    "health.read": Rule("ask whether the process is up and ready", anyone=True),
    "problems.read": Rule("read what a kind of problem means", anyone=True),
    "login": Rule("sign in with a link that works once", anyone=True),
    "openapi.read": Rule("read the OpenAPI document", frozenset(Role)),
    "metrics.read": Rule("scrape the metrics", READERS | {S}),
    "demand.read": Rule("ask how much work there is: one number", READERS | {S}),
    "whoami.read": Rule("ask who one is", frozenset(Role)),
    "jobs.read": Rule("look at jobs, their attempts and their events", READERS),
    "jobs.read_payload": Rule("see payloads, results and handles of jobs", MAKERS),
    "jobs.read_logs": Rule("read what the handlers of jobs have logged", MAKERS),
    "jobs.enqueue": Rule("enqueue a job", MAKERS),
    "jobs.cancel": Rule("cancel a job", OPERATORS, OWN, asks_why=True),
    "jobs.retry": Rule("run an ended job once more", OPERATORS, OWN, asks_why=True),
    "jobs.recover": Rule(
        "take a job from a holder that went silent", OPERATORS, permission="backoffice.data_management.sync", needs_reason=True
    ),
    "jobs.bulk": Rule("cancel, retry or recover many jobs by a filter", OPERATORS, needs_reason=True),
    "failures.read": Rule("look at failures, grouped", READERS),
    "pipelines.read": Rule("look at pipelines", READERS),
    "pipelines.abort": Rule("stop a pipeline", OPERATORS, needs_reason=True),
    "kinds.read": Rule("look at the kinds of jobs", READERS),
    "kinds.control": Rule("pause, drain or resume a kind", OPERATORS, needs_reason=True),
    "locks.read": Rule("look at locks", READERS),
    "locks.release": Rule("release a lock whose holder has ended", OPERATORS, needs_reason=True),
    "workers.read": Rule("look at workers", READERS),
    "workers.quiet": Rule("have a worker claim no more, or claim again", OPERATORS, needs_reason=True),
    "ops.read": Rule("look at the state of everything", READERS),
    "ops.drain": Rule("take no new jobs, or take them again", OPERATORS, needs_reason=True),
    "periodic.read": Rule("look at the periodic loops", READERS),
    "periodic.trigger": Rule("run a periodic loop now", OPERATORS, needs_reason=True),
    "periodic.control": Rule("pause or resume a periodic loop", OPERATORS, needs_reason=True),
    "mappings.read": Rule("look at mappings and their versions", READERS),
    "mappings.create": Rule("make a mapping, or a copy of one", MAKERS),
    "mappings.change": Rule("change or delete a mapping", OPERATORS, OWN),
    "snapshots.read": Rule("look at snapshots and their exports", READERS),
    "snapshots.create": Rule("make a snapshot by hand", OPERATORS, permission="exports.snapshots.create"),
    "snapshots.change": Rule("cancel, retry or delete a snapshot, and say how long it lives", OPERATORS, OWN),
    "schema.read": Rule("look at what the engines' catalogs hold", READERS),
    "schema.refresh": Rule("read the engines' catalogs anew", OPERATORS, needs_reason=True),
    "config.read": Rule("look at the configuration", OPERATORS),
    "config.write": Rule("change the configuration", ADMINS, needs_reason=True),
    "audit.read": Rule("read the audit", OPERATORS),
    "tokens.read": Rule("list the API tokens", ADMINS),
    "tokens.write": Rule("make and revoke API tokens", ADMINS, needs_reason=True),
    "work": Rule("claim, renew, report and finish jobs: the worker protocol", frozenset({W})),
}


def allows(action: str, role: Role | None, *, scopes: frozenset[str] | None, permissions: frozenset[str]) -> bool:
    """Whether somebody may do this, be it only to what is their own. Pure."""
    rule = POLICY[action]
    if rule.anyone or (rule.permission is not None and rule.permission in permissions):
        return True
    if role is None or role not in rule.roles | rule.own:
        return False
    return scopes is None or action in scopes or rule.permission in scopes


def only_own(action: str, role: Role | None, permissions: frozenset[str]) -> bool:
    """Whether somebody who may do this may do it to their own only. Pure."""
    rule = POLICY[action]
    return role in rule.own and role not in rule.roles and rule.permission not in permissions
