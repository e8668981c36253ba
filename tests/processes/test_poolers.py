"""Behind a pooler in transaction mode nothing starts that needs a session, and `tx=` works as the how-to says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import programs
from holdfast.database import pooler, revision
from holdfast.errors import TransactionPooler, UsageError
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob
from transaction_pooler import transaction_pooler


@pytest.fixture
def pooled(fresh_database: str) -> Iterator[str]:
    """The address of a transaction pooler in front of a database of one's own: its backends keep their statements."""
    with transaction_pooler(fresh_database) as url:
        yield url


def test_pooler_changes_backends_between_transactions_only(pooled: str) -> None:
    with psycopg.connect(pooled, autocommit=True) as one, psycopg.connect(pooled, autocommit=True):
        pids = [one.execute("SELECT pg_backend_pid()").fetchone() for _ in range(4)]
        with one.transaction():
            inside = {one.execute("SELECT pg_backend_pid()").fetchone() for _ in range(4)}

    assert (len(set(pids)), len(inside)) == (2, 1)


def test_postgres_is_not_detected_as_a_pooler(database: str) -> None:
    pooler.require_own_session(database)


def test_transaction_pooler_is_detected_at_start(pooled: str) -> None:
    with pytest.raises(TransactionPooler, match=r"pool_mode = transaction.*42P05, 26000.*connect to Postgres directly"):
        revision.require_current(pooled)


@pytest.mark.parametrize("command", [["worker", "run"], ["scheduler", "run"], ["serve", "--port", "0"]], ids=lambda c: c[0])
def test_programs_refuse_to_start_behind_a_transaction_pooler(command: list[str], pooled: str, tmp_path: Path) -> None:
    ended = programs.run(*command, env=os.environ | {"HOLDFAST_DATABASE_URL": pooled}, folder=tmp_path)

    assert ended.returncode != 0
    assert "is a pooler in transaction mode" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr


def test_doctor_reports_a_transaction_pooler_as_an_error(pooled: str, tmp_path: Path) -> None:
    ended = programs.run("doctor", "-o", "json", env=os.environ | {"HOLDFAST_DATABASE_URL": pooled}, folder=tmp_path)

    found = {one["check"]: one for one in json.loads(ended.stdout)}
    assert found["pooler"]["level"] == "error"
    assert "pool_mode = session" in found["pooler"]["fix"]


def enqueue_through(pooled: str, count: int, **options: int | None) -> None:
    """Enqueue over four connections in turns, as a web application does."""
    conns = [psycopg.connect(pooled, **options) for _ in range(4)]  # type: ignore[arg-type]
    try:
        for number in range(count):
            conn = conns[number // 2 % 4]  # two in a row: the second gets another backend than the first
            with conn.transaction():
                enqueue_sync(conn, NewJob("k", {"number": number}))
    finally:
        for conn in conns:
            conn.close()


def test_enqueue_works_behind_a_pooler_without_prepared_statements(pooled: str, fresh_database: str) -> None:
    enqueue_through(pooled, 48, prepare_threshold=None)

    with psycopg.connect(fresh_database) as conn:
        assert conn.execute("SELECT count(*) FROM holdfast.jobs").fetchone() == (48,)


def test_prepared_statement_error_names_the_pooler_and_the_setting(pooled: str) -> None:
    with pytest.raises(UsageError, match=r"pooler in transaction mode.*42P05, 26000.*prepare_threshold=None"):
        enqueue_through(pooled, 48)
