"""What the schema itself forbids, to our code as to psql: illegal moves, and rows that contradict themselves."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from itertools import product
from typing import Any

import psycopg
import pytest

from factories import KERNEL, add, hold, rows, value
from holdfast.jobs.states import State, legal_pairs

# What a row needs besides its state, for the constraints to accept it.
NEEDS: dict[State, str] = {
    State.BLOCKED: "waiting_for = 'lock', attempt_id = NULL, worker_id = NULL, finished_at = NULL",
    State.PENDING: "waiting_for = NULL, attempt_id = NULL, worker_id = NULL, finished_at = NULL",
    State.RUNNING: "waiting_for = NULL, attempt_id = coalesce(attempt_id, gen_random_uuid()), "
    "worker_id = coalesce(worker_id, gen_random_uuid()), finished_at = NULL",
    State.SUBMITTED: "waiting_for = NULL, attempt_id = NULL, worker_id = NULL, finished_at = NULL, handle = '1', "
    "next_poll_at = clock_timestamp()",
    **dict.fromkeys(
        (State.COMPLETED, State.FAILED, State.CANCELLED),
        "waiting_for = NULL, attempt_id = NULL, worker_id = NULL, finished_at = clock_timestamp()",
    ),
}
INSERT: dict[State, str] = {
    State.BLOCKED: "INSERT INTO holdfast.jobs (kind, state, waiting_for) VALUES ('k', 'blocked', 'lock')",
    State.PENDING: "INSERT INTO holdfast.jobs (kind) VALUES ('k')",
    State.RUNNING: "INSERT INTO holdfast.jobs (kind, state, attempt_id, worker_id) "
    "VALUES ('k', 'running', gen_random_uuid(), gen_random_uuid())",
    State.SUBMITTED: "INSERT INTO holdfast.jobs (kind, state, handle, next_poll_at) "
    "VALUES ('k', 'submitted', '1', clock_timestamp())",
    **{
        state: f"INSERT INTO holdfast.jobs (kind, state, finished_at) VALUES ('k', '{state}', clock_timestamp())"
        for state in (State.COMPLETED, State.FAILED, State.CANCELLED)
    },
}


async def _row_in(conn: Any, state: State) -> int:
    return int(await value(conn, f"{INSERT[state]} RETURNING id"))


async def test_database_allows_exactly_the_transitions_of_the_table(conn: Any) -> None:
    """Every pair of states is tried by hand."""
    allowed, refused_by = set(), set()
    for before, after in product(State, State):
        job_id = await _row_in(conn, before)
        try:
            await conn.execute(f"UPDATE holdfast.jobs SET state = '{after}', {NEEDS[after]} WHERE id = %s", [job_id])
            allowed.add((before, after))
        except psycopg.errors.CheckViolation as refused:
            refused_by.add(refused.diag.constraint_name)

    assert allowed == {*legal_pairs(), *((state, state) for state in State)}
    assert refused_by == {"legal_moves_only"}, "and not because the rows here were made badly"


def test_trigger_and_code_have_the_same_transitions() -> None:
    migration = import_module("holdfast.database.migrations.versions.0001_kernel")
    listed = re.findall(r"'(\w+)>(\w+)'", migration.UPGRADE)

    assert sorted((State(before), State(after)) for before, after in listed) == legal_pairs()


async def test_refused_transition_names_both_states(conn: Any) -> None:
    job_id = await _row_in(conn, State.COMPLETED)

    with pytest.raises(psycopg.errors.CheckViolation, match=f"job {job_id} may not move from completed") as refused:
        await conn.execute("UPDATE holdfast.jobs SET state = 'pending', finished_at = NULL WHERE id = %s", [job_id])

    assert "states.py has the legal moves" in (refused.value.diag.message_hint or "")


@pytest.mark.parametrize(
    "change",
    ["attempt_no = attempt_no - 1", "fence_token = fence_token - 1", "attempt_id = gen_random_uuid()"],
    ids=["attempts never fall", "the fence token never falls", "an attempt is never swapped for another"],
)
async def test_fence_token_never_decreases(conn: Any, change: str) -> None:
    claim = await hold(conn)

    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        await conn.execute(f"UPDATE holdfast.jobs SET {change} WHERE id = %s", [claim.id])

    assert refused.value.diag.constraint_name == "legal_moves_only"


# ---------------------------------------------------------------------------------------------------------------------
# Rows that contradict themselves
# ---------------------------------------------------------------------------------------------------------------------

NOW, SOME, NONE = "clock_timestamp()", "gen_random_uuid()", "'00000000-0000-4000-8000-000000000000'"


def _insert(table: str, **columns: str) -> str:
    return f"INSERT INTO holdfast.{table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


def _job(**columns: str) -> str:
    return _insert("jobs", **{"kind": "'k'"} | columns)


def _set(columns: str) -> str:
    return f"UPDATE holdfast.jobs SET {columns} WHERE id = JOB_ID"


def _tie(parent: str, job: str) -> str:
    return _insert("dependencies", parent_id=parent, job_id=job)


def _want(**columns: str) -> str:
    return _insert("lock_wants", **{"job_id": "JOB_ID", "key": "'t'", "when_busy": "'wait'", "priority": "0"} | columns)


def _holder(**columns: str) -> str:
    return _insert("lock_holders", **{"key": "'t'", "permit": "1", "job_id": "JOB_ID"} | columns)


def _effect(**columns: str) -> str:
    plain = {"job_id": "JOB_ID", "attempt_id": SOME, "fence_token": "1", "kind": "'q'", "tag": f"{SOME}::text"}
    return _insert("effects", **plain | columns)


def _line(**columns: str) -> str:
    plain = {"job_id": "JOB_ID", "attempt_no": "1", "line_no": "1", "said_at": NOW, "level": "'info'", "message": "'m'"}
    return _insert("log_lines", **plain | columns)


WORKER = _insert("workers", id=NONE, name="'w'", host="'h'", pid="1", version="'1'", lease_until=NOW)
RUNNING = {"state": "'running'", "attempt_id": SOME, "worker_id": SOME}

# The name of a constraint (of a table, or of a column's domain) or unique index → statements of which the last breaks it.
# JOB_ID stands for a job that exists.
BROKEN: dict[str, list[list[str]]] = {
    "jobs_kind_check": [[_job(kind="''")], [_job(kind="repeat('k', 201)")], [_set("kind = ''")]],
    "a_name": [[_job(queue="''")], [_job(queue="repeat('q', 201)")]],
    "jobs_state_check": [[_job(state="'finished'")]],
    "a_payload": [[_job(payload="to_jsonb(repeat('x', 16000001))")]],
    "what_it_waits_for": [[_job(state="'blocked'", waiting_for="'luck'")]],
    "a_budget": [[_job(max_attempts="0")], [_job(max_crashes="0")]],
    "a_duration": [[_job(max_runtime="interval '0'")]],
    "a_share": [[_job(progress="1.5")], [_job(progress="-0.5")]],
    "how_long_unique": [[_job(unique_key="'u'", unique_while="'forever'")]],
    "a_count": [[_job(parents_left="-1")]],
    "if_parent_fails": [[_job(if_parent_fails="'panic'")]],
    "held_exactly_while_running": [
        [_job(state="'running'")],
        [_job(state="'running'", attempt_id=SOME)],
        [_job(**RUNNING | {"state": "'pending'"})],
        [_job(worker_id=SOME)],
        [_job(**RUNNING | {"state": "'completed'", "finished_at": NOW})],
    ],
    "blocked_says_why": [[_job(state="'blocked'")], [_job(state="'pending'", waiting_for="'lock'")]],
    "submitted_can_be_polled": [[_job(state="'submitted'", handle="'1'")], [_job(state="'submitted'", next_poll_at=NOW)]],
    "ended_has_a_time": [[_job(state="'completed'")], [_job(state="'pending'", finished_at=NOW)]],
    "pending_has_budget": [[_job(errors="3")], [_job(crashes="3")]],
    "holders_wait_for_nothing": [
        [_job(ties="33", slot_key="'s'")],
        [_job(ties="33", state="'blocked'", waiting_for="'parents'")],
        [_set("ties = 33"), _set("slot_key = 's'")],
        [_set("slot_key = 's'"), _set("ties = 33")],
        [_set("ties = 33"), _set("state = 'blocked', waiting_for = 'lock'")],
    ],
    "current_has_a_slot": [[_job(is_current="true")], [_set("is_current = true")]],
    "unique_is_whole": [
        [_job(unique_key="'u'")],
        [_job(unique_while="'live'")],
        [_set("unique_key = 'u'")],
        [_set("unique_while = 'live'")],
    ],
    "step_has_a_parent": [[_job(step="'s'")], [_job(parent_id="1")], [_set("step = 's'")], [_set("parent_id = 1")]],
    "keys_fit_their_index": [
        [_job(slot_key="repeat('s', 1501)")],
        [_set("slot_key = repeat('s', 1501)")],
        [_set("idempotency_key = repeat('i', 1501)")],
        [_set("unique_key = repeat('u', 1501), unique_while = 'live'")],
        [_set("step = repeat('s', 1501), parent_id = 1")],
    ],
    "legal_moves_only": [
        [_job(state="'completed'", finished_at=NOW), "UPDATE holdfast.jobs SET state = 'failed' WHERE state = 'completed'"]
    ],
    "jobs_pkey": [[_job(id="JOB_ID")]],
    "one_child_per_step": [[_job(parent_id="1", step="'s'")] * 2],
    "one_job_per_idempotency_key": [[_job(idempotency_key="'i'")] * 2],
    "one_waiting_per_unique_key": [[_job(unique_key="'u'", unique_while="'waiting'")] * 2],
    "one_live_per_unique_key": [[_job(unique_key="'u'", unique_while="'live'", **RUNNING)] * 2],
    "one_current_per_slot": [[_job(slot_key="'s'", is_current="true")] * 2],
    "one_waiting_per_slot": [[_job(slot_key="'s'")] * 2],
    "workers_pkey": [[WORKER] * 2],
    "workers_runner_check": [[f"{WORKER}; UPDATE holdfast.workers SET runner = 'odd'"]],
    "workers_check": [[f"{WORKER}; UPDATE holdfast.workers SET session_pid = 1"]],
    "workers_check1": [[f"{WORKER}; UPDATE holdfast.workers SET session_gone_at = {NOW}"]],
    "controls_pkey": [[_insert("controls", kind="'k'")] * 2],
    "a_trace": [[_job(trace="repeat('x', 10000)")]],
    "pipelines_status_check": [[_insert("pipelines", id=NONE, name="'p'", status="'odd'")]],
    "pipelines_pkey": [[_insert("pipelines", id=NONE, name="'p'")] * 2],
    "dependencies_pkey": [[_tie("JOB_ID", "JOB_ID")] * 2],
    "dependencies_parent_id_fkey": [[_tie("0", "JOB_ID")]],
    "dependencies_job_id_fkey": [[_tie("JOB_ID", "0")]],
    "lock_keys_pkey": [[_insert("lock_keys", key="'t'")] * 2],
    "lock_keys_key_check": [[_insert("lock_keys", key="''")], [_insert("lock_keys", key="repeat('t', 501)")]],
    "lock_wants_pkey": [[_want()] * 2],
    "lock_wants_job_id_fkey": [[_want(job_id="0")]],
    "lock_wants_most_check": [[_want(most="0")]],
    "lock_wants_when_busy_check": [[_want(when_busy="'panic'")]],
    "lock_holders_pkey": [[_holder()] * 2],
    "lock_holders_job_id_key_key": [[_holder(), _holder(permit="2")]],
    "lock_holders_job_id_fkey": [[_holder(job_id="0")]],
    "lock_holders_permit_check": [[_holder(permit="0")]],
    "permit_within_the_limit": [[_holder(permit="2", most="1")]],
    "effects_pkey": [[_effect(id="1000000000").replace("VALUES", "OVERRIDING SYSTEM VALUE VALUES")] * 2],
    "effects_job_id_fkey": [[_effect(job_id="0")]],
    "effects_tag_key": [[_effect(tag="'t'")] * 2],
    "effects_state_check": [[_effect(state="'lost'")]],
    "log_lines_pkey": [[_line()] * 2],
    "log_lines_line_no_check": [[_line(line_no="0")]],
    "log_lines_level_check": [[_line(level="'loud'")]],
    "log_lines_message_check": [[_line(message="repeat('x', 20001)")]],
    "log_lines_fields_check": [[_line(fields="to_json(ARRAY(SELECT md5(n::text) FROM generate_series(1, 4000) n))")]],
    "unwanted_has_a_time": [[_effect(state="'unwanted'")], [_effect(clean_after=NOW)]],
}

CASES = [(name, statements) for name, cases in BROKEN.items() for statements in cases]


@pytest.mark.parametrize(("constraint", "statements"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)])
async def test_inconsistent_row_is_refused(conn: Any, constraint: str, statements: list[str]) -> None:
    job_id = await add(conn)
    *arrange, breaks = [statement.replace("JOB_ID", str(job_id)) for statement in statements]
    for statement in arrange:
        await conn.execute(statement)

    with pytest.raises(psycopg.errors.IntegrityError) as refused:
        await conn.execute(breaks)

    assert refused.value.diag.constraint_name == constraint


async def test_job_without_a_kind_is_refused(conn: Any) -> None:
    """K-43: no job is without a kind, so no runner has to skip one."""
    with pytest.raises(psycopg.errors.NotNullViolation) as refused:
        await conn.execute(_job(kind="NULL"))

    assert refused.value.diag.column_name == "kind"
    assert await rows(conn, "SELECT id FROM holdfast.jobs") == []


async def test_every_kernel_constraint_is_violated_by_a_test(conn: Any) -> None:
    found = await rows(
        conn,
        """WITH ours AS (SELECT ('holdfast.' || name)::regclass AS oid FROM unnest(%s::text[]) AS name)
           SELECT conname FROM pg_constraint WHERE conrelid IN (SELECT oid FROM ours) AND contype IN ('c', 'u', 'p', 'f', 't')
           UNION
           SELECT conname FROM pg_constraint WHERE contypid IN (
               SELECT atttypid FROM pg_attribute WHERE attrelid IN (SELECT oid FROM ours))
           UNION
           SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
           WHERE i.indisunique AND i.indrelid IN (SELECT oid FROM ours)
           UNION
           SELECT tgname FROM pg_trigger t WHERE t.tgrelid IN (SELECT oid FROM ours) AND NOT t.tgisinternal
             AND tgname LIKE '%%_only' AND tgname <> 'valid_values_only'
           UNION  -- the rules of that trigger
           SELECT rule[1] FROM regexp_matches((SELECT prosrc FROM pg_proc WHERE oid = 'holdfast.refuse_values'::regproc),
                                              '(?:THEN|ELSE) ''([a-z_]+)''', 'g') AS rule""",
        list(KERNEL),
    )

    assert {name for (name,) in found} == set(BROKEN)


async def test_job_with_effects_cannot_be_deleted(conn: Any) -> None:
    job_id = await add(conn)
    await conn.execute(_effect().replace("JOB_ID", str(job_id)))

    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await conn.execute("DELETE FROM holdfast.jobs WHERE id = %s", [job_id])


def test_every_state_has_a_valid_row_in_this_test() -> None:
    assert set(NEEDS) == set(INSERT) == set(State)
    assert inspect.getdoc(State)
