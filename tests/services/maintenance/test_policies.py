"""Policies: their definition, their due times and windows, and the loop that enqueues their jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from factories import end, make_due, rows, state_of, take, value
from holdfast.errors import TermLost
from holdfast.jobs import control
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.policies import reconcile, store
from holdfast.services.maintenance.policies.choose import Known, Runs, choose
from holdfast.services.maintenance.policies.definition import Policy, parse_policy
from holdfast.services.maintenance.policies.due import is_open, next_run, next_runs, opening_around
from holdfast.services.maintenance.policies.enqueue import wanted_of
from holdfast.services.maintenance.run import record
from holdfast.services.maintenance.run.request import RequestInvalid
from holdfast.services.maintenance.run.submit import submit
from holdfast.services.maintenance.setup import Maintenance
from holdfast.testing import crash_at
from maintenance_factories import HEALTHY, ORDERS, STATS, actions_of, know, run_of

Conn = psycopg.AsyncConnection[Any]
ITEMS = TableRef("default", "sales", "items")
NIGHTLY = {
    "kind": "MaintenancePolicy",
    "name": "nightly",
    "match": {"database": "sales", "table": "*"},
    "schedule": "0 2 * * *",
    "timezone": "Europe/Zurich",
    "window": {"start": "01:00", "end": "05:00"},
    "actions": ["expire_snapshots", {"rewrite_data_files": {"min_input_files": 2}}],
    "max_parallel": 2,
}
POLL = {"match": {"table": "*"}, "when": {"health_below": 70}, "actions": ["rewrite_data_files"]}


def policy(**changes: Any) -> Policy:
    return parse_policy({**NIGHTLY, **changes})


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# ---------------------------------------------------------------------------------------------------------------------
# Definitions
# ---------------------------------------------------------------------------------------------------------------------


def test_every_mistake_of_a_definition_is_reported_at_once():
    wrong = {
        "name": "Not Valid",
        "match": {"schema": "sales", "table": []},
        "schedule": "0 2 * *",
        "timezone": "Europe/Atlantis",
        "when": {"health_below": 0},
        "window": {"start": 600, "end": "25:00"},
        "actions": ["rewrite_data_files", {"expire_snapshots": {"retain_last": 0}}],
        "max_parallel": 0,
        "every": "6 fortnights",
        "enabled": "yes",
        "colour": "red",
    }

    with pytest.raises(RequestInvalid) as refused:
        parse_policy(wrong)

    assert {one.pointer for one in refused.value.problems} == {
        *("/name", "/match/schema", "/match/table", "/schedule", "/timezone", "/when/health_below", "/window/start"),
        *("/window/end", "/actions/1/retain_last", "/max_parallel", "/every", "/enabled", "/colour"),
    }


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"schedule": None}, "/schedule"),
        ({"schedule": "nonsense"}, "/schedule"),
        ({"schedule": 7}, "/schedule"),
        ({"schedule": "0 2 30 2 *"}, "/schedule"),
        ({"every": "1h"}, "/every"),
        ({"match": {}}, "/match"),
        ({"actions": []}, "/actions"),
        ({"actions": [{"remove_orphan_files": {"older_than": "1d", "force": True}}]}, "/actions"),
        ({"window": {"start": "01:00", "end": "01:00"}}, "/window"),
        ({"engine": "hive"}, "/engine"),
        ({"kind": "Other"}, "/kind"),
    ],
)
def test_refused_definition(changes: dict[str, Any], pointer: str):
    with pytest.raises(RequestInvalid) as refused:
        policy(**changes)

    assert pointer in {one.pointer for one in refused.value.problems}


def test_globs_select_tables():
    chosen = policy(match={"catalog": "de*", "database": ["sales", "hr"], "table": "o*"}, exclude=["sales.old_*"])

    matched = [
        str(one)
        for one in (ORDERS, ITEMS, TableRef("default", "sales", "old_orders"), TableRef("lake", "sales", "orders"),
                    TableRef("default", "hr", "offers"))
        if chosen.matches(one)
    ]  # fmt: skip
    assert matched == ["default.sales.orders", "default.hr.offers"]


# ---------------------------------------------------------------------------------------------------------------------
# Due times
# ---------------------------------------------------------------------------------------------------------------------


def test_runs_follow_the_time_zone_through_a_clock_change():
    """02:00 in Zurich is 01:00 UTC in winter and 00:00 UTC in summer; the skipped hour runs at the end of the gap."""
    assert next_runs(policy(), at("2026-03-27T12:00"), 3) == [
        *(at("2026-03-28T01:00"), at("2026-03-29T01:00"), at("2026-03-30T00:00"))
    ]


def test_due_time_outside_of_the_window_moves_to_its_start():
    early = policy(schedule="30 23 * * *")

    assert next_run(early, at("2026-01-10T12:00")) == at("2026-01-11T00:00"), "01:00 in Zurich"
    assert next_runs(policy(schedule=None, every="6h", timezone="UTC"), at("2026-01-10T06:30"), 2) == [
        *(at("2026-01-11T01:00"), at("2026-01-12T01:00"))
    ]


@pytest.mark.parametrize(
    ("moment", "expected"), [("2026-01-10T21:59", False), ("2026-01-10T22:00", True), ("2026-01-11T04:59", True),
                             ("2026-01-11T05:00", False)]
)  # fmt: skip
def test_window_may_cross_midnight(moment: str, expected: bool):
    night = policy(window={"start": "22:00", "end": "05:00"}, timezone="UTC")

    assert is_open(night, at(moment)) is expected


def test_window_says_when_it_ends():
    found = opening_around(policy(), at("2026-01-10T01:00"))

    assert found == (at("2026-01-10T00:00"), at("2026-01-10T04:00"))


# ---------------------------------------------------------------------------------------------------------------------
# Choices
# ---------------------------------------------------------------------------------------------------------------------


def test_choices_say_why_a_table_is_left_alone():
    now = at("2026-01-10T12:00")
    whole = policy(schedule=None, when={"health_below": 70}, window=None, min_interval="1d")
    names = ["bad", "worse", "healthy", "unmeasured", "running", "recent"]
    tables = {name: TableRef("default", "sales", name) for name in names}
    health = {"bad": 50, "worse": 10, "healthy": 70, "unmeasured": None, "running": 5, "recent": 20}
    runs = {
        tables["running"]: Runs(7, now),
        tables["recent"]: Runs(None, now - timedelta(hours=23)),
        tables["bad"]: Runs(None, now - timedelta(hours=25)),
    }

    found = choose(whole, [Known(tables[name], health[name]) for name in names], runs, now)

    assert [(one.table.name, one.skipped is None) for one in found] == [
        *(("running", False), ("worse", True), ("recent", False), ("bad", True), ("healthy", False), ("unmeasured", False))
    ]
    reasons = {one.table.name: one.skipped for one in found}
    assert reasons["running"] == "job 7 of this policy has not ended"
    assert reasons["healthy"] == "its health is 70, not below 70"


# ---------------------------------------------------------------------------------------------------------------------
# The API
# ---------------------------------------------------------------------------------------------------------------------


async def test_policy_is_stored_audited_and_read_back(ops: Any, viewer: Any, conn: Conn):
    first = await ops.put("/api/maintenance-policies/nightly", json=NIGHTLY)
    same = await ops.put("/api/maintenance-policies/nightly", json=NIGHTLY)
    other = await ops.put("/api/maintenance-policies/nightly", json={**NIGHTLY, "max_parallel": 3})

    assert [one.json()["data"]["changed"] for one in (first, same, other)] == [True, False, True]
    shown = (await viewer.get("/api/maintenance-policies/nightly")).json()["data"]
    assert (shown["version"], shown["actions"]) == (2, ["rewrite_data_files", "expire_snapshots"])
    assert shown["next_due_at"] is not None
    audited = await rows(conn, "SELECT action, object, actor FROM holdfast.audit WHERE action LIKE 'maintenance_policies%%'")
    assert audited == [("maintenance_policies.write", "maintenance-policy/nightly", "token:ops")] * 3
    assert (await viewer.put("/api/maintenance-policies/nightly", json=NIGHTLY)).status_code == 403


async def test_mistakes_of_a_policy_have_their_places_in_the_body(ops: Any):
    answer = await ops.put("/api/maintenance-policies/other", json={**NIGHTLY, "max_parallel": 0})

    assert answer.status_code == 422
    assert {one["pointer"] for one in answer.json()["errors"]} == {"/body/name", "/body/max_parallel"}


async def test_policy_that_could_never_run_here_is_refused(ops: Any):
    """Its engine is not configured, or the default engine does not have its actions."""
    other = await ops.put("/api/maintenance-policies/nightly", json={**NIGHTLY, "engine": "spark"})
    lacking = await ops.put("/api/maintenance-policies/nightly", json={**NIGHTLY, "actions": ["compute_statistics"]})

    assert [one.status_code for one in (other, lacking)] == [422, 422]
    assert other.json()["errors"][0]["message"] == "the engine spark is not configured; use one of pyiceberg"
    assert "the engine pyiceberg has no compute_statistics" in lacking.json()["errors"][0]["message"]


async def test_preview_lists_tonights_tables_and_the_next_five_runs(viewer: Any, conn: Conn):
    await know(conn)
    await know(conn, ITEMS, HEALTHY)
    await know(conn, TableRef("default", "hr", "staff"))

    answer = await viewer.post("/api/maintenance-policies/preview", json={**NIGHTLY, "when": {"health_below": 70}})
    preview = answer.json()["data"]

    assert [(one["name"], one["skipped"] is None) for one in preview["tables"]] == [("orders", True), ("items", False)]
    assert len(preview["next_runs"]) == 5
    assert all(one[11:16] == "02:00" for one in preview["next_runs"]), "in the time zone of the policy"
    assert [one["action"] for one in preview["actions"]] == ["rewrite_data_files", "expire_snapshots"]
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_policies") == 0


async def test_deleted_policy_is_gone(ops: Any):
    await ops.put("/api/maintenance-policies/nightly", json=NIGHTLY)

    gone = await ops.delete("/api/maintenance-policies/nightly")

    assert gone.status_code == 200
    assert (await ops.get("/api/maintenance-policies/nightly")).status_code == 404
    assert (await ops.delete("/api/maintenance-policies/nightly")).status_code == 404


# ---------------------------------------------------------------------------------------------------------------------
# The loop
# ---------------------------------------------------------------------------------------------------------------------

LAST_NIGHT = """
    UPDATE holdfast.maintenance_policies
    SET next_due_at = date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '23 hours'
"""
DUE = "UPDATE holdfast.maintenance_policies SET next_due_at = clock_timestamp() - %s::interval"


async def stored(conn: Conn, **changes: Any) -> str:
    """A policy that is due now, without a window."""
    definition = {**NIGHTLY, "window": None, **changes}
    chosen = parse_policy(definition)
    await store.put(conn, chosen, definition, actor="test")
    if chosen.is_scheduled:
        await conn.execute(DUE, ["1 second"])
    return chosen.name


async def test_due_policy_enqueues_one_job_per_table_under_its_permits(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await know(conn, ITEMS)
    await stored(conn)

    result = await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert result.items == 2
    jobs = await rows(conn, "SELECT job_id, requested_by, policy, due_at IS NOT NULL FROM holdfast.maintenance_runs ORDER BY 1")
    assert {one[1:] for one in jobs} == {("policy:nightly", "nightly", True)}
    wants = await rows(conn, "SELECT key, most, when_busy FROM holdfast.lock_wants WHERE job_id = %s ORDER BY key", jobs[0][0])
    assert wants == [("maintenance:default", 2, "wait"), (f"table:{ITEMS}", 1, "wait")]
    audited = await value(conn, "SELECT detail FROM holdfast.audit WHERE action = 'maintenance_policies.run'")
    assert audited["jobs"] == [one[0] for one in jobs]
    assert await value(conn, "SELECT next_due_at > clock_timestamp() FROM holdfast.maintenance_policies")


async def test_late_run_is_not_doubled(conn: Conn, here: Maintenance, pass_of: Any):
    """A job of the policy that still waits or runs is the one: the next due time adds none."""
    await know(conn)
    await stored(conn)
    for _ in range(3):
        await reconcile.enqueue_due(await pass_of(reconcile.NAME))
        await conn.execute(DUE, ["1 second"])

    ((job_id,),) = await rows(conn, "SELECT job_id FROM holdfast.maintenance_runs")
    await take(conn, job_id)
    await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(job_id,)]


async def test_slot_merges_a_trigger_that_the_choice_did_not_see(conn: Conn, here: Maintenance):
    """Two triggers that race make one job: the slot of the policy and the table is the guard behind the choice."""
    await know(conn)
    wanted = wanted_of(policy(window=None), ORDERS, None, None, "pyiceberg", "release")

    first = await submit(conn, wanted, requested_by="policy:nightly")
    again = await submit(conn, wanted, requested_by="policy:nightly")

    assert (again.id, again.created) == (first.id, False)
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs") == 1


async def test_missed_nights_are_made_up_once(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await stored(conn)
    await conn.execute(DUE, ["9 days"])

    await reconcile.enqueue_due(await pass_of(reconcile.NAME))
    await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs") == 1


async def test_due_time_whose_window_is_over_is_missed(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await stored(conn, window={"start": "01:00", "end": "01:01"}, timezone="UTC", schedule="0 1 * * *")
    await conn.execute(LAST_NIGHT)

    result = await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert result.items == 0
    assert await value(conn, "SELECT next_due_at > clock_timestamp() FROM holdfast.maintenance_policies")


async def test_no_action_begins_after_the_window(conn: Conn, here: Maintenance):
    """The window ends while the job waits for its lock: it completes without having touched the table."""
    await know(conn)
    over = datetime.now(UTC) - timedelta(minutes=1)
    wanted = wanted_of(policy(), ORDERS, None, over, "pyiceberg", "release")
    made = await submit(conn, wanted, requested_by="policy:nightly")
    claim = await take(conn, made.id)

    began = [await record.begin(conn, claim, position, STATS) for position in (1, 2)]
    await end(conn, claim)

    assert began == [False, False]
    assert set((await actions_of(conn, made.id)).values()) == {"skipped"}
    assert await run_of(conn, made.id) == "completed"


async def test_unhealthy_tables_trigger_a_policy_without_a_schedule(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await know(conn, ITEMS, HEALTHY)
    await stored(conn, name="poll", schedule=None, when={"health_below": 70})

    await reconcile.enqueue_due(await pass_of(reconcile.NAME))
    ((job_id, name),) = await rows(conn, "SELECT job_id, name FROM holdfast.maintenance_runs")
    claim = await take(conn, job_id)
    await end(conn, claim)
    await reconcile.enqueue_due(await pass_of(reconcile.NAME))
    soon = await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs")
    await conn.execute("UPDATE holdfast.maintenance_runs SET created_at = created_at - interval '25 hours'")
    await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert (name, soon) == ("orders", 1)
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs") == 2


async def test_draining_postpones_what_is_due(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await stored(conn)
    await control.drain(conn, actor="test")

    result = await reconcile.enqueue_due(await pass_of(reconcile.NAME))
    await control.undrain(conn)
    later = await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert (result.items, result.skipped, later.items) == (0, 1, 1)


async def test_disabled_policy_never_runs(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await stored(conn, enabled=False)

    assert (await reconcile.enqueue_due(await pass_of(reconcile.NAME))).items == 0


async def test_crash_before_the_commit_leaves_the_policy_due(conn: Conn, here: Maintenance, pass_of: Any):
    """The jobs and the next due time commit together: a pass that dies enqueues nothing, and the next one enqueues once."""
    await know(conn)
    await stored(conn)

    with crash_at("maintenance.policy.enqueued"), pytest.raises(BaseException, match=r"maintenance\.policy\.enqueued"):
        await reconcile.enqueue_due(await pass_of(reconcile.NAME))
    between = await value(conn, "SELECT count(*) FROM holdfast.jobs")
    await reconcile.enqueue_due(await pass_of(reconcile.NAME))

    assert between == 0
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1


async def test_pass_that_lost_its_term_enqueues_nothing(conn: Conn, here: Maintenance, pass_of: Any):
    await know(conn)
    await stored(conn)
    stale = await pass_of(reconcile.NAME)
    await conn.execute("UPDATE holdfast.loops SET term = term + 1 WHERE name = %s", [reconcile.NAME])

    with pytest.raises(TermLost):
        await reconcile.enqueue_due(stale)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_permits_bound_the_jobs_of_a_catalog(conn: Conn, here: Maintenance, pass_of: Any):
    """max_parallel: two of three tables are maintained, and the third waits for one of them."""
    for name in ("a", "b", "c"):
        await know(conn, TableRef("default", "sales", name))
    await stored(conn)
    await reconcile.enqueue_due(await pass_of(reconcile.NAME))
    jobs = [job_id for (job_id,) in await rows(conn, "SELECT job_id FROM holdfast.maintenance_runs ORDER BY 1")]

    claims = [await take(conn, job_id) for job_id in jobs[:2]]
    with pytest.raises(AssertionError, match="could not be claimed"):
        await take(conn, jobs[2])
    waits = await state_of(conn, jobs[2])
    await end(conn, claims[0])
    await make_due(conn, jobs[2])

    assert waits == "blocked"
    assert await state_of(conn, jobs[2]) == "pending"
