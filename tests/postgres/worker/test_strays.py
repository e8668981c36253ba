"""Claims whose response was lost are released by attempt, so that the next attempt of the same job is not released."""

from __future__ import annotations

from typing import Any

from tests.factories import LEASE, add, hold, make_due, moves_of, start_worker, state_of, take

from holdfast.jobs.renew import WorkerInfo, renew
from holdfast.worker.lanes import Lanes
from holdfast.worker.transports.direct import Direct


async def test_second_heartbeat_does_not_release_a_stray_that_runs_by_then(database: str, conn: Any) -> None:
    worker = await start_worker(conn)
    lost = await hold(conn, worker=worker)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - %s", [2 * LEASE])
    first, second = [await renew(conn, worker, lease=LEASE) for _ in range(2)]
    me = WorkerInfo(worker, "worker", host="host", pid=1, version="1")
    direct = Direct(database)
    await direct.open()

    try:
        assert await direct.release_strays(me, first.strays) == [lost.id]
        await make_due(conn, lost.id)
        await take(conn, lost.id, worker)
        assert await direct.release_strays(me, second.strays) == []
    finally:
        await direct.close()

    assert await state_of(conn, lost.id) == "running"
    assert await moves_of(conn, lost.id) == ["rescue"]


async def test_released_stray_claim_is_not_started(conn: Any) -> None:
    """And one that was answered before is no stray, whatever the beat said."""
    worker = await start_worker(conn)
    late, known = [await take(conn, await add(conn), worker) for _ in range(2)]
    lanes = Lanes({}, 2)
    lanes.hand_out([known])

    assert lanes.renounce([late.attempt_id, known.attempt_id]) == [late.attempt_id]
    lanes.hand_out([late])

    assert lanes.held() == [known]
