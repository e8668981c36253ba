"""Savings: per run and per month, with the cost; money only where a price is configured, and as an estimate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from factories import end, take
from holdfast.services.maintenance.engines.interface import ActionResult
from holdfast.services.maintenance.run import record
from holdfast.services.maintenance.savings import LABEL, Prices, by_month, money_of, saved_by, with_totals
from maintenance_factories import PATH, STATS, know

Conn = psycopg.AsyncConnection[Any]
GIB = 1 << 30
AFTER = replace(STATS, data_files=4, manifests=2)
PRICES = Prices(storage_gib_month=0.02, engine_hour=3.6, currency="CHF")


@dataclass(frozen=True)
class Action:
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    details: dict[str, Any] = field(default_factory=dict)
    engine_seconds: float = 10.0


def test_run_saves_the_differences_of_its_actions_and_costs_all_their_seconds():
    actions = [
        Action(STATS.as_json(), AFTER.as_json()),
        Action(AFTER.as_json(), replace(AFTER, snapshots=2).as_json(), {"deleted_files": 7, "deleted_bytes": GIB}),
        Action(AFTER.as_json(), None),
    ]

    found = saved_by(actions, Prices())

    assert (found.data_files, found.manifests, found.snapshots) == (996, 3, 10)
    assert (found.deleted_files, found.deleted_bytes, found.engine_seconds) == (7, GIB, 30.0)
    assert found.money is None


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        (Prices(), None),
        (PRICES, (0.2, 3.6, -3.4)),
        (Prices(storage_gib_month=0.02), (0.2, None, None)),
        (Prices(engine_hour=3.6), (None, 3.6, None)),
    ],
)
def test_money_needs_a_price_and_is_an_estimate(prices: Prices, expected: tuple[float | None, ...] | None):
    found = money_of(10 * GIB, 3600.0, prices)

    assert (None if found is None else (found.storage_saved_per_month, found.engine_cost, found.net_first_month)) == expected
    assert found is None or found.label == LABEL == "estimate"


def test_deleted_files_are_summed_up():
    assert with_totals({"deleted_data_files": 2, "deleted_manifests": 3})["deleted_files"] == 5
    assert with_totals({"deleted_files": 1, "deleted_data_files": 2})["deleted_files"] == 1
    assert with_totals({"rewritten_files": 2}) == {"rewritten_files": 2}


async def ended(conn: Conn, ops: Any, *, dry_run: bool = False, status: str = "completed") -> None:
    made = await ops.post(PATH, json={"actions": ["expire_snapshots"], "dry_run": dry_run})
    claim = await take(conn, made.json()["data"]["id"])
    await record.begin(conn, claim, 1, STATS)
    result = ActionResult("expire_snapshots", STATS, AFTER, 60.0, {"deleted_bytes": GIB, "deleted_data_files": 9})
    failure = record.Failure("broken", "broken") if status == "failed" else None
    await record.finish(conn, claim, 1, status=status, result=result, engine_seconds=60.0, failure=failure)
    await end(conn, claim)


async def test_months_sum_up_ended_runs_without_dry_runs(ops: Any, viewer: Any, conn: Conn):
    await know(conn)
    await ended(conn, ops)
    await ended(conn, ops, dry_run=True)
    await conn.execute("UPDATE holdfast.maintenance_runs SET finished_at = '2026-01-31 23:30+00'")
    await ended(conn, ops)

    found = await by_month(conn, PRICES)
    recent = await by_month(conn, PRICES, since=datetime(2026, 2, 1, tzinfo=UTC))
    served = (await viewer.get("/api/savings")).json()["data"]

    assert [(one.runs, one.tables, one.data_files, one.deleted_files) for one in found] == [(1, 1, 996, 9)] * 2
    assert found[1].month == "2026-01"
    assert found[1].money is not None
    assert (found[1].money.storage_saved_per_month, found[1].money.currency) == (0.02, "CHF")
    assert len(recent) == 1
    assert [one["money"] for one in served] == [None, None], "no price is configured"
    assert await by_month(conn, PRICES, catalog="elsewhere") == []
