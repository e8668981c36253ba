"""A database that takes no writes: a standby after a failover, or one in maintenance."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import Client


async def test_f_31_read_only_database_returns_503(analyst: Client, conn: Any) -> None:
    assert (await analyst.post("/api/jobs", json={"kind": "a.kind"})).status_code == 202
    name = conn.info.dbname
    await conn.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()", [name]
    )

    answers = [await analyst.post("/api/jobs", json={"kind": "a.kind"}) for _ in range(4)]

    assert {answer.status_code for answer in answers} == {503}
    assert all("Retry-After" in answer.headers for answer in answers)
    assert "takes no writes" in answers[-1].json()["detail"]
