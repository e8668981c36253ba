"""The states of instances: the table in the code and the trigger in the database are the same; and what a move clears."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from factories import value
from graph_factories import get
from holdfast.services.graphs.durations import InvalidDuration, end_of, parse, written
from holdfast.services.graphs.states import ACTIVE, ERROR_CODES, LEGAL_MOVES, InstanceState

S = InstanceState
INSERT = """
    INSERT INTO holdfast.graph_instances (owner, name, engine, mapping_id, mapping_version, snapshot_id, state, job_id,
        start_token, memory_mb, cpu, address, started_at, suspended_at, error_code, error)
    VALUES ('ada', 'g', 'ladybug', 1, 1, 1, %(state)s, 1, gen_random_uuid(), 1024, 1,
        CASE WHEN %(state)s IN ('starting', 'running', 'resuming') THEN 'http://there' END, now(), now(),
        CASE WHEN %(state)s = 'failed' THEN 'OOM_KILLED' END, CASE WHEN %(state)s = 'failed' THEN 'too big' END)
    RETURNING id
"""


async def put(conn: Any, state: str) -> int:
    cursor = await conn.execute(INSERT, {"state": state})
    return int((await cursor.fetchone())[0])


MOVE = """
    UPDATE holdfast.graph_instances SET state = %(to)s, address = CASE WHEN %(to)s = 'running' THEN 'http://x' ELSE address END,
        error_code = CASE WHEN %(to)s = 'failed' THEN 'DATABASE_ERROR' END, error = CASE WHEN %(to)s = 'failed' THEN 'e' END
    WHERE id = %(id)s
"""


async def test_the_database_allows_exactly_the_moves_of_the_table(conn: Any) -> None:
    allowed, refused_by = set(), set()
    for before in S:
        for after in S:
            if before is after:
                continue
            made = await put(conn, before)
            try:
                await conn.execute(MOVE, {"id": made, "to": after})
                allowed.add((before, after))
            except psycopg.errors.CheckViolation as error:
                refused_by.add(error.diag.constraint_name)

    assert (allowed, refused_by) == (LEGAL_MOVES, {"legal_instance_moves_only"})


CHECKS = """
    SELECT string_agg(pg_get_constraintdef(oid), ' ') FROM pg_constraint
    WHERE conrelid = 'holdfast.graph_instances'::regclass AND contype = 'c'
      AND (pg_get_constraintdef(oid) LIKE '%STARTUP_FAILED%' OR conname = 'graph_instances_state_check')
"""
COUNTED = "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = 'holdfast.graph_instances_counted'::regclass"


async def test_the_error_codes_and_states_of_the_table_are_those_of_the_code(conn: Any) -> None:
    """I-07: seven error codes."""
    checks = await value(conn, CHECKS)
    names = set(re.findall(r"'([A-Za-z_]+)'", checks))
    assert names == {*ERROR_CODES, *S}
    assert len(ERROR_CODES) == 7
    indexed = await value(conn, COUNTED)
    assert set(re.findall(r"'([a-z_]+)'", indexed)) == set(ACTIVE)


async def test_a_move_clears_what_belongs_to_the_earlier_state(conn: Any) -> None:
    """E-13: an error does not stay when the instance recovers, and an address not when its server is gone."""
    made = await put(conn, "running")
    await conn.execute(
        "UPDATE holdfast.graph_instances SET wanted_memory_mb = 2048, runtime_name = 'pid 1' WHERE id = %s", [made]
    )
    since = (await get(conn, made)).state_since

    await conn.execute(MOVE, {"id": made, "to": "failed"})
    failed = await get(conn, made)
    assert (failed.error_code, failed.address, failed.runtime_name, failed.wanted_memory_mb) == (
        "DATABASE_ERROR",
        None,
        None,
        None,
    )
    assert failed.state_since > since
    await conn.execute(MOVE, {"id": made, "to": "starting"})

    again = await get(conn, made)
    assert (again.status, again.error_code, again.error) == (S.STARTING, None, None)


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("running", "address = NULL"),
        ("failed", "error_code = NULL, error = NULL"),
        ("suspended", "address = 'http://there'"),
        ("starting", "wanted_memory_mb = 4096"),
        ("running", "error_code = 'OOM_KILLED', error = 'x'"),
        ("running", "ttl = 'P1Y'"),
        ("running", "ttl = 'P'"),
        ("running", "ttl = 'PT'"),
        ("running", "memory_mb = 0"),
    ],
)
async def test_the_database_refuses_contradictions(conn: Any, state: str, change: str) -> None:
    made = await put(conn, state)

    with pytest.raises(psycopg.errors.CheckViolation):
        await conn.execute(f"UPDATE holdfast.graph_instances SET {change} WHERE id = %s", [made])


GOOD = {
    "PT24H": timedelta(hours=24),
    "P7D": timedelta(days=7),
    "P1DT12H": timedelta(hours=36),
    "PT1H30M": timedelta(minutes=90),
    "P2W": timedelta(weeks=2),
    "P1W2DT3H4M5S": timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5),
}


@pytest.mark.parametrize("text", GOOD)
async def test_durations_may_be_combined(conn: Any, text: str) -> None:
    """L-06, Z-01, E-15: what the API accepts is what the loop and the database understand."""
    assert parse(text) == GOOD[text]
    assert parse(written(GOOD[text])) == GOOD[text]
    made = await put(conn, "running")
    await conn.execute("UPDATE holdfast.graph_instances SET ttl = %s WHERE id = %s", [text, made])


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1Y", "P1M", "1H", "PT1H30", "P1DT", "PT0S", "P-1D", "pt1h", "PT1.5H", "P1D\n", "P٣D"]
)
def test_other_texts_are_refused(text: str) -> None:
    """L-06: and never expire anything."""
    with pytest.raises(InvalidDuration):
        parse(text)
    assert end_of(datetime(2026, 1, 1, tzinfo=UTC), text) is None
