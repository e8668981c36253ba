"""The filters of lists, counts and bulk actions, as SQL conditions. Pure; the values stay parameters.

A condition is part of the statement only if it is used, so that its index can be used. The alias of the table is `j`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from holdfast.errors import UsageError
from holdfast.jobs.given import a_kind, an_id
from holdfast.jobs.model import uuid_text
from holdfast.jobs.payload import refuse_bad_text
from holdfast.jobs.states import State
from holdfast.jobs.views.failures import FINGERPRINT

MOST_LOOKED_AT = 50_000
MOST_IDS = 500

# Binary-search the primary key for the first job after a timestamp, because ids rise with the time: twenty lookups instead of
# an index that every enqueue, claim and finish would have to write. Ids are not exactly in the order of time: one minute of
# tolerance covers concurrent transactions and clock changes, and the time itself is compared too.
FIRST_SINCE = """(
    WITH RECURSIVE halving (low, high) AS (
        SELECT min(id), max(id) + 1 FROM holdfast.jobs
        UNION ALL
        SELECT CASE WHEN seen.is_older THEN seen.id + 1 ELSE low END,
               CASE WHEN seen.is_older THEN high ELSE low + (high - low) / 2 END
        FROM halving CROSS JOIN LATERAL (
            SELECT id, created_at < {time} AS is_older FROM holdfast.jobs
            WHERE id >= low + (high - low) / 2 ORDER BY id LIMIT 1
        ) AS seen
        WHERE low < high
    )
    SELECT low FROM halving WHERE low >= high
)"""
FIRST_AFTER = FIRST_SINCE.format(time="%(created_after)s::timestamptz - interval '1 minute'")
FIRST_BEFORE = FIRST_SINCE.format(time="%(created_before)s::timestamptz + interval '1 minute'")
# What `read.locate` finds, as constants: the planner then knows how few jobs are in the range.
LOCATED = {"created_after": ("first_id", FIRST_AFTER), "created_before": ("end_id", FIRST_BEFORE)}
CREATED = {
    "created_after": "j.created_at >= %(created_after)s::timestamptz",
    "created_before": "j.created_at < %(created_before)s::timestamptz",
}

# The columns of a text search. Not the payload, which not every principal may see. There is no index for such a search, so it
# covers only the newest jobs.
SEARCHED = ("j.kind", "j.queue", "j.step", "j.slot_key", "j.message", "j.error")
FOUND_IN_WORDS = " OR ".join(f"strpos(lower({column}), lower(%(q)s)) > 0" for column in SEARCHED)

FILTERS = {
    "before": "j.id < %(before)s",
    "ids": "j.id = ANY (%(ids)s::bigint[])",
    "state": "j.state = %(state)s",  # see STATE_FILTERS
    "kind": "j.kind = %(kind)s",
    "queue": "j.queue = %(queue)s",
    "pipeline_id": "j.pipeline_id = %(pipeline_id)s",
    "worker_id": "j.worker_id = %(worker_id)s",
    "slot_key": "j.slot_key = %(slot_key)s",
    "parent_id": "j.parent_id = %(parent_id)s",
    "condition": "true",  # see CONDITIONS
    "created_after": f"{CREATED['created_after']} AND j.id >= {FIRST_AFTER}",
    "created_before": f"{CREATED['created_before']} AND j.id < {FIRST_BEFORE}",
    "first_id": "j.id >= %(first_id)s",
    "end_id": "j.id < %(end_id)s",
    "fingerprint": f"j.state = 'failed' AND {FINGERPRINT} = %(fingerprint)s",
    "q": f"""(j.id::text = %(q)s OR {FOUND_IN_WORDS})
        AND j.id > (SELECT coalesce(max(id), 0) - {MOST_LOOKED_AT} FROM holdfast.jobs)""",
}
# As literals, because the planner uses a partial index only if its condition is in the statement. A running job has a
# worker_id, which is the condition of the index of running jobs.
STATE_FILTERS = {state: f"j.state = '{state}'" for state in State} | {
    State.RUNNING: "j.state = 'running' AND j.worker_id IS NOT NULL"
}


class Condition(StrEnum):
    """Filters that are not states."""

    STALE = "stale"  # running, but the lease of its worker has expired
    RETRYING = "retrying"  # waits after an error
    WAITING_LOCK = "waiting_lock"
    WAITING_PARENTS = "waiting_parents"
    CANCELLING = "cancelling"  # running with a cancel request
    QUARANTINED = "quarantined"  # crashed too many processes


CONDITIONS = {
    Condition.STALE: "j.worker_id IN (SELECT w.id FROM holdfast.workers w WHERE w.lease_until < clock_timestamp())",
    Condition.RETRYING: "j.state = 'pending' AND j.errors > 0",
    Condition.WAITING_LOCK: "j.state = 'blocked' AND j.waiting_for = 'lock'",
    Condition.WAITING_PARENTS: "j.state = 'blocked' AND j.waiting_for = 'parents'",
    Condition.CANCELLING: "j.worker_id IS NOT NULL AND j.cancel_requested_at IS NOT NULL",
    Condition.QUARANTINED: "j.state = 'failed' AND j.crashes >= j.max_crashes",
}


def where(filters: Mapping[str, Any]) -> str:
    """The SQL condition for these filters; filters that are None are ignored."""
    unknown = set(filters) - set(FILTERS)
    if unknown:
        raise UsageError(f"no filter {', '.join(sorted(unknown))}; there are: {', '.join(FILTERS)}")
    if filters.get("state") not in (None, *State):
        raise UsageError(f"no state {filters['state']!r}; there are: {', '.join(State)}")
    if filters.get("condition") not in (None, *Condition):
        raise UsageError(f"no condition {filters['condition']!r}; there are: {', '.join(Condition)}")
    given = {name: value for name, value in filters.items() if value is not None}
    for name in ("pipeline_id", "worker_id"):
        if name in given:
            uuid_text(given[name], name)
    for name in ("before", "parent_id"):
        if name in given:
            an_id(name, given[name])
    if len(given.get("ids", ())) > MOST_IDS:
        raise UsageError(f"at most {MOST_IDS} ids, not {len(given['ids'])}; use another filter")
    for one in given.get("ids", ()):
        an_id("ids", one)
    if "kind" in given:
        a_kind(given["kind"])
    for name in ("kind", "queue", "slot_key", "fingerprint", "q"):
        refuse_bad_text(given.get(name), name)
    clauses = [_clause(name, value, given) for name, value in given.items()]
    return " AND ".join(clauses) or "true"


def _clause(name: str, value: Any, given: Mapping[str, Any]) -> str:
    if name == "state":
        return STATE_FILTERS[State(value)]
    if name in LOCATED and LOCATED[name][0] in given:
        return CREATED[name]
    return CONDITIONS[Condition(value)] if name == "condition" else FILTERS[name]
