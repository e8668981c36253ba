"""Every statement of the kernel against the migrated schema: it can be prepared, it asks the right clock, and the plans of
those that matter do not depend on fresh statistics."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof.mutants.statements import MODULES, can_be_prepared, parameters_of, prepare, statements
from psycopg import AsyncClientCursor

from databases import new_database
from factories import HOUR, value
from holdfast.jobs import begin, claim, enqueue, finish, locks, pipelines, poll, progress, promote, renew, rescue
from holdfast.jobs.enqueue import enqueue_many_sync
from holdfast.jobs.model import NewJob
from holdfast.jobs.states import State
from holdfast.jobs.views import filters as job_filters
from holdfast.jobs.views import read

STATEMENTS = statements()


def test_statements_are_collected() -> None:
    """Should somebody rename them all, the tests below must not pass because there is nothing to test."""
    known = {"claim.CLAIM", "finish.COMPLETE_PLAIN", "finish.FINISH", "renew.BEAT", "rescue.RESCUE", "locks.HOLD_KEYS"}
    assert known < set(STATEMENTS)
    assert len(STATEMENTS) > 70


async def _refused(conn: Any, statements: dict[str, str]) -> dict[str, str]:
    """Those that Postgres cannot prepare, and why."""
    refused = {}
    for name, statement in statements.items():
        try:
            async with conn.transaction():
                await conn.execute(prepare("tried", statement))
                await conn.execute("DEALLOCATE tried")
        except psycopg.Error as error:
            refused[name] = str(error)
    return refused


async def test_every_statement_can_be_prepared_against_the_schema(conn: Any) -> None:
    assert await _refused(conn, can_be_prepared(STATEMENTS)) == {}


async def test_every_list_query_can_be_prepared(conn: Any) -> None:
    filters = {name: text for name, text in job_filters.FILTERS.items() if name != "state"}
    wheres = {
        "none": "true",
        "all but the state": " AND ".join(filters.values()),
        **job_filters.STATE_FILTERS,
        **job_filters.CONDITIONS,
        **filters,
    }

    for statement in (read.LIST_JOBS, read.COUNT_JOBS):
        assert await _refused(conn, {name: statement.format(filters=where) for name, where in wheres.items()}) == {}


async def test_invalid_statement_is_detected(conn: Any) -> None:
    assert set(await _refused(conn, {"typo": "SELECT idd FROM holdfast.jobs WHERE id = %(id)s"})) == {"typo"}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_uses_the_transaction_start_time(name: str) -> None:
    """P7: a lease that is renewed from back then, or a job that is due by then, would be wrong."""
    assert not re.search(
        r"\bnow\(\)|\bcurrent_timestamp\b|\blocaltimestamp\b|\btransaction_timestamp\b", STATEMENTS[name], re.I
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_locks_rows_by_a_sub_select_with_a_limit(name: str) -> None:
    """P1: `id IN (SELECT … LIMIT …)` may be run again for each row, and then takes too many."""
    assert not re.search(r"\bIN\s*\(\s*SELECT[^()]*\bLIMIT\b", STATEMENTS[name], re.I | re.S)


@pytest.mark.parametrize("name", STATEMENTS)
def test_each_statement_selects_rows_to_lock_once(name: str) -> None:
    """P2: a pick with a lock stands in a MATERIALIZED part of its own."""
    text = STATEMENTS[name]
    if "SKIP LOCKED" in text and re.search(r"\b(UPDATE|DELETE FROM) holdfast\.", text):
        assert "AS MATERIALIZED" in text


@pytest.mark.parametrize("text", [claim.CLAIM, claim.CLAIM_BY_ID], ids=["of a batch", "by id"])
def test_a_claim_picks_and_updates_in_one_statement(text: str) -> None:
    """K-03, K-05: a CTE locks the rows, and the update beside it counts the attempt and writes its fence and its holder."""
    parts = ("AS MATERIALIZED", "FOR UPDATE SKIP LOCKED", "UPDATE holdfast.jobs")

    assert [(text.count(part), text.count(";")) for part in parts] == [(1, 0)] * 3
    assert sorted(parts, key=text.index) == list(parts)
    update = text.partition("UPDATE holdfast.jobs")[2].partition("RETURNING")[0]
    for written in ("attempt_no = attempt_no + 1", "attempt_id = gen_random_uuid()", "worker_id = %(worker_id)s"):
        assert written in update


def test_a_claim_of_tied_jobs_counts_the_attempt_in_the_update_that_begins_it() -> None:
    """K-05: their rows are locked by an earlier statement of the transaction."""
    assert claim.CLAIM_TIED.count("UPDATE holdfast.jobs") == 1
    assert ";" not in claim.CLAIM_TIED
    update = claim.CLAIM_TIED.partition("RETURNING")[0]
    for written in ("state = 'running'", "attempt_no = attempt_no + 1", "attempt_id = gen_random_uuid()"):
        assert written in update


def _holes(tree: ast.AST) -> list[str]:
    """What is filled into texts that look like SQL."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            whole = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
            if re.search(r"\b(SELECT|INSERT INTO|UPDATE holdfast|DELETE FROM)\b", whole):
                found += [ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
    return found


def test_statements_are_built_from_constants_only() -> None:
    """What a caller says travels as a parameter, never in the text."""
    foreign = {}
    for module in MODULES:
        path = Path(str(module.__file__))
        holes = [hole for hole in _holes(ast.parse(path.read_text())) if not hole.isupper()]
        if holes:
            foreign[path.name] = sorted(set(holes))

    # rescue: the way to find the silent ones, a constant beside it. dependants: the jobs to hold, a constant of whoever does.
    # read: the states, one by one.
    assert foreign.pop("dependants.py", ["some"]) == ["some"]
    assert foreign.pop("rescue.py", ["silent"]) == ["silent"]
    assert foreign.pop("read.py", ["state"]) == ["condition", "state"]
    assert foreign == {}


# ---------------------------------------------------------------------------------------------------------------------
# Plans
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded_database(server: str, template: str) -> Iterator[str]:
    """20,000 jobs that wait, and statistics that have never seen one run."""
    with new_database(server, f"TEMPLATE {template}") as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = false)")
            enqueue_many_sync(conn, [NewJob(f"kind-{number % 5}", queue=f"queue-{number % 2}") for number in range(20_000)])
            conn.execute("VACUUM ANALYZE holdfast.jobs")
        yield url


@pytest.fixture
async def crowd(crowded_database: str) -> AsyncIterator[Any]:
    """A connection to it; nothing that is done there is kept."""
    async with await psycopg.AsyncConnection.connect(crowded_database) as conn:
        yield conn
        await conn.rollback()


async def _plan(conn: Any, statement: str, parameters: dict[str, Any]) -> str:
    """The plan for these very parameters."""
    cursor = AsyncClientCursor(conn)
    await cursor.execute("EXPLAIN (COSTS OFF) " + statement, parameters)
    return "\n".join(line for (line,) in await cursor.fetchall())


async def _generic_plan(conn: Any, statement: str, parameters: dict[str, Any]) -> str:
    """The plan that a statement which is prepared once and run for ever comes to."""
    names = parameters_of(statement)
    await conn.execute("SET plan_cache_mode = force_generic_plan")
    await conn.execute(prepare("generic", statement))
    cursor = AsyncClientCursor(conn)
    given = ", ".join(f"%({name})s" for name in names)
    await cursor.execute(f"EXPLAIN (COSTS OFF) EXECUTE generic ({given})", parameters)
    found = "\n".join(line for (line,) in await cursor.fetchall())
    await conn.execute("DEALLOCATE generic; RESET plan_cache_mode")
    return found


both_plans = pytest.mark.parametrize("plan", [_plan, _generic_plan], ids=["planned for these values", "planned once"])
WORKER, ATTEMPT = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


@both_plans
async def test_claim_uses_only_its_index(crowd: Any, plan: Any) -> None:
    parameters = {
        "worker_id": WORKER,
        "begins": False,
        **claim.known({"kind-1": 1, "kind-2": 1}),
        "queues": ["queue-0", "queue-1"],
        "limit": 10,
    }

    found = await plan(crowd, claim.CLAIM, parameters)

    assert "Index Scan using jobs_claimable on jobs" in found
    assert "Seq Scan on jobs" not in found
    assert "Sort Key: jobs.priority" not in found, "the index has the order already"
    assert "Index Scan using jobs_pkey on jobs j" in found


@both_plans
@pytest.mark.parametrize("batch", [1, 100])
async def test_batch_of_ends_uses_the_primary_key_with_stale_statistics(crowd: Any, plan: Any, batch: int) -> None:
    """DESIGN 3: with a condition on the state beside it the planner started from the whole table."""
    ids, attempts = "{" + ",".join(map(str, range(1, batch + 1))) + "}", "{" + ",".join([ATTEMPT] * batch) + "}"

    found = await plan(crowd, finish.COMPLETE_PLAIN, {"ids": ids, "attempts": attempts, "results": "{}", "worker_id": WORKER})

    assert "Index Scan using jobs_pkey on jobs j" in found
    assert "Seq Scan on jobs" not in found


FENCED: dict[str, tuple[str, dict[str, Any]]] = {
    "finish": (
        finish.FINISH,
        {
            "state": "completed",
            "delay": None,
            "ended": True,
            "errors": 0,
            "error": None,
            "cause": None,
            "result": None,
            "handle": None,
            "poll_count": 0,
            "poll_errors": 0,
            "id": 7,
            "attempt_id": ATTEMPT,
            "move": "complete",
            "worker_id": WORKER,
            "detail": None,
        },
    ),
    "progress": (progress.PROGRESS, {"progress": 0.5, "message": "m", "id": 7, "attempt_id": ATTEMPT}),
    "checkpoint": (progress.CHECK, {"id": 7, "attempt_id": ATTEMPT}),
    "begin": (begin.BEGIN, {"id": 7, "attempt_id": ATTEMPT}),
    "what has begun": (
        begin.NOTE_BEGUN,
        {"ids": "{7}", "attempts": f"{{{ATTEMPT}}}", "seconds": [1.0], "worker_id": WORKER},
    ),
    "chain": (
        pipelines.COMPLETE_AND_CHAIN,
        {
            "id": 7,
            "attempt_id": ATTEMPT,
            "worker_id": WORKER,
            "result": None,
            "kind": "k",
            "queue": "q",
            "priority": 0,
            "payload": "{}",
            "kind_version": 1,
            "max_attempts": 3,
            "max_crashes": 3,
            "max_runtime": HOUR,
            "step": "s",
            "trace": None,
            "child_attempt_id": ATTEMPT,
            "begins": False,
        },
    ),
    "claim by id": (claim.CLAIM_BY_ID, {"worker_id": WORKER, "id": 7, "begins": False, **claim.known({"kind-1": 1})}),
}


@both_plans
@pytest.mark.parametrize("name", FENCED)
async def test_fenced_write_uses_the_primary_key(crowd: Any, plan: Any, name: str) -> None:
    found = await plan(crowd, *FENCED[name])

    assert "using jobs_pkey on jobs" in found
    assert "Seq Scan on jobs" not in found


SWEEPS: dict[str, tuple[str, dict[str, Any], str]] = {
    "polls": (
        poll.CLAIM_TO_POLL,
        {"worker_id": WORKER, "kinds": ["k"], "versions": [1], "queues": ["q"], "limit": 50, "begins": False},
        "jobs_to_poll",
    ),
    "work that is overdue at its engine": (poll.FIND_OVERDUE, {"limit": 1, "tried": [7]}, "jobs_to_poll"),
    "delayed jobs": (promote.PROMOTE_DUE, {"limit": 1000}, "jobs_delayed"),
    "workers that went silent": (rescue.HOLD_DEAD, {"tried": [WORKER]}, "jobs_held"),
    "what they hold": (rescue.HOLD_THEIR_JOBS, {"found": WORKER}, "jobs_held"),
    "silent holders": (rescue.RESCUE, {"cause": "c", "error": "e", "actor": "a", "found": WORKER}, "jobs_held"),
    "overdue attempts": (rescue.HOLD_OVERDUE, {"grace": HOUR, "tried": [7]}, "jobs_held"),
    "an overdue attempt": (rescue.RESCUE_OVERDUE, {"cause": "c", "error": "e", "actor": "a", "found": 7}, "jobs_pkey"),
    "what runs in a blocked worker": (
        begin.NOTE_BEGUN_BLOCKED,
        {"worker_id": WORKER, "tokens": "{7}", "seconds": 1.0},
        "jobs_held",
    ),
    "the jobs of a dead worker": (
        rescue.RESCUE_WORKER,
        {"cause": "c", "error": "e", "actor": "a", "worker_id": WORKER, "ids": None, "attempts": None, "begun": None},
        "jobs_held",
    ),
}


@both_plans
@pytest.mark.parametrize("name", SWEEPS)
async def test_sweep_uses_its_partial_index(crowd: Any, plan: Any, name: str) -> None:
    """K-57: above all the one for jobs whose time has come, `jobs_delayed`, in which no other job is."""
    statement, parameters, index = SWEEPS[name]

    found = await plan(crowd, statement, parameters)

    assert index in found
    assert "Seq Scan on jobs" not in found


async def test_index_of_delayed_jobs_has_only_pending_jobs_with_a_time(crowd: Any) -> None:
    """K-57."""
    found = await value(crowd, "SELECT indexdef FROM pg_indexes WHERE schemaname = 'holdfast' AND indexname = 'jobs_delayed'")

    columns, _, condition = found.partition(" WHERE ")
    assert columns.endswith("(run_after)")
    assert condition == "((state = 'pending'::text) AND (run_after IS NOT NULL))"


async def test_wake_finds_waiters_of_a_free_lock_by_index(crowd: Any) -> None:
    await crowd.execute("INSERT INTO holdfast.lock_keys SELECT 'key ' || number FROM generate_series(1, 20000) AS number")
    await crowd.execute(
        """INSERT INTO holdfast.lock_wants (job_id, key, when_busy, priority, waiting)
           SELECT id, 'one', 'wait', 0, true FROM holdfast.jobs"""
    )
    await crowd.execute("ANALYZE holdfast.lock_keys, holdfast.lock_wants, holdfast.lock_holders")

    found = await _plan(crowd, locks.KEYS_WITH_ROOM, {})

    assert "using lock_waiters on lock_wants" in found
    assert "Seq Scan on lock_wants" not in found
    assert "lock_keys" not in found


@both_plans
async def test_heartbeat_never_scans_the_jobs(crowd: Any, plan: Any) -> None:
    """Also when the statistics promise plenty of a kind of which nothing is left."""
    parameters = {
        "worker_id": WORKER,
        "lease": HOUR,
        "ids": "{1,2}",
        "attempts": f"{{{ATTEMPT},{ATTEMPT}}}",
        "kinds": ["kind-1"],
        "versions": [1],
        "queues": ["queue-1"],
    }

    found = await plan(crowd, renew.BEAT, parameters)

    assert "Seq Scan on jobs" not in found


async def test_unique_enqueue_uses_the_key_index(crowd: Any) -> None:
    twin = await _plan(crowd, enqueue.HOLD_WAITING_TWIN, {"merges_in": "s", "kind": "k", "unique_key": "u"})
    same = await _plan(crowd, enqueue.FIND_BY_IDEMPOTENCY_KEY, {"payload": "{}", "kind": "k", "idempotency_key": "i"})

    assert "Seq Scan" not in twin
    assert "one_job_per_idempotency_key" in same


# Every job is pending here: the first page comes from the primary key at once.
@pytest.mark.parametrize("state", [state for state in State if state not in (State.PENDING, State.COMPLETED)])
async def test_page_of_a_rare_state_does_not_scan_all_jobs(crowd: Any, state: State) -> None:
    page = await _plan(crowd, read.LIST_JOBS.format(filters=job_filters.STATE_FILTERS[state]), {"limit": 50})

    assert "using jobs_pkey" not in page
    assert "Seq Scan" not in page


@pytest.mark.parametrize(("name", "time"), [("created_after", "9999-01-01Z"), ("created_before", "2000-01-01Z")])
async def test_time_filter_uses_a_binary_search(crowd: Any, name: str, time: str) -> None:
    statement = read.LIST_JOBS.format(filters=job_filters.FILTERS[name])

    cursor = AsyncClientCursor(crowd)
    await cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", {"limit": 50, name: time})
    ((plan,),) = await cursor.fetchall()

    assert max(_thrown_away(plan[0]["Plan"])) < 100


def _thrown_away(node: dict[str, Any]) -> Iterator[int]:
    """How many rows each part of a plan looked at in vain."""
    yield int(node.get("Rows Removed by Filter", 0))
    for part in node.get("Plans", []):
        yield from _thrown_away(part)


async def test_plans_are_tested_with_statistics_of_pending_jobs_only(crowd: Any) -> None:
    known = await value(
        crowd,
        "SELECT most_common_vals::text FROM pg_stats "
        "WHERE schemaname = 'holdfast' AND tablename = 'jobs' AND attname = 'state'",
    )

    assert known == "{pending}"
