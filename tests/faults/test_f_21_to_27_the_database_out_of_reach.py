"""F-21 to F-27: partitions, cut connections, terminated backends, restarts. Workers go on by themselves, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from pathlib import Path

import psycopg
import pytest
from tests.faults.conftest import PATIENCE, Scene

from holdfast.apps.api import bounded_pool
from holdfast.database.pool import careful
from holdfast.settings import settings
from serving import serving

pytestmark = pytest.mark.processes


def test_f_21_client_without_network_gets_an_error_and_does_not_hang(scene: Scene):
    """Nothing is acknowledged: by default a client would hang for a quarter of an hour. The seconds are measured by
    `proof/recovery.py` (`partition_error_s`); here stands what bounds them, in the kernel's own words."""
    with psycopg.connect(careful(scene.postgres.through(scene.proxy.port)), autocommit=True) as conn:
        with socket.socket(fileno=os.dup(conn.fileno())) as kernel:
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        scene.proxy.black_hole()

        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")

        scene.proxy.heal()


@pytest.mark.more
def test_f_21_partitioned_worker_stops_at_its_deadline_and_its_job_runs_elsewhere(scene: Scene):
    job = scene.add("proof.steps", steps=100, pause=0.05)
    cut_off = scene.worker(by_proxy=True, name="cut off", lease=5.0)
    scene.until(lambda: scene.lines("effect", job))
    scene.proxy.black_hole()

    successor = scene.worker(name="successor")
    scene.until(lambda: any(line.pid != cut_off.pid for line in scene.lines("effect", job)))
    scene.proxy.heal()

    scene.all_is_well()
    assert scene.moves(job) == ["rescue", "complete"]
    assert scene.lines("finish", job)[-1].pid != cut_off.pid
    assert successor.pid != cut_off.pid


@pytest.mark.more
async def test_f_22_api_without_its_database_returns_an_error_and_never_hangs(scene: Scene, tmp_path: Path):
    """On a connection that is open, and where one has to be waited for. The seconds are measured by `proof/recovery.py`
    (`partition_api_s`); what bounds them is looked at below."""
    with serving(scene.postgres.through(scene.proxy.port), tmp_path) as served:
        async with served.client() as client:
            assert (await client.get("/api/jobs")).status_code == 200
            scene.proxy.black_hole()
            for _ in range(2):  # with the connections that were there, and without any
                reads = [client.get("/api/jobs") for _ in range(settings().http_connections + 2)]
                writes = [client.post("/api/jobs", json={"kind": "proof.quick", "payload": {"n": 1}})]

                for answer in await asyncio.gather(*reads, *writes):
                    assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
                    assert int(answer.headers["Retry-After"]) > 0
            ready, alive = await asyncio.gather(client.get("/ready"), client.get("/health"))
            assert (ready.status_code, ready.json()["database"]) == (503, "unreachable")
            assert int(ready.headers["Retry-After"]) > 0
            assert alive.status_code == 200, "a restart would not bring the database back"

            scene.proxy.heal()
            async with asyncio.timeout(PATIENCE):
                while (await client.get("/api/jobs")).status_code != 200:
                    await asyncio.sleep(0.1)
    assert scene.value("SELECT count(*) FROM holdfast.jobs") == 0, "what was refused was not done"


async def test_f_22_wait_for_a_connection_is_not_longer_than_the_request_timeout(scene: Scene):
    pool = bounded_pool(scene.postgres.url, 2)
    async with pool, pool.connection() as conn:
        bounds = conn.info.get_parameters()

        assert pool.timeout == int(bounds["connect_timeout"]) == int(bounds["tcp_user_timeout"]) / 1000 == 5
        (statement,) = await (await conn.execute("SHOW statement_timeout")).fetchone() or [None]
        assert statement == "15s", "a database that answers and is slow is another matter"


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "arguments", "statement"),
    [
        ("proof.quick", {}, "'complete', 'completed'"),
        ("proof.publish", {}, "COMMIT"),
        ("proof.flaky", {"errors": 1}, "COMMIT"),
        ("proof.chain", {"length": 2}, "'running', $"),
    ],
)
def test_f_23_24_commit_whose_response_was_lost_is_looked_up(
    scene: Scene, side: str, kind: str, arguments: dict[str, int], statement: str
):
    """Cut before it reached the server, or after it was done: to the worker both look the same."""
    job = scene.add(kind, **arguments)
    cuts = scene.proxy.cuts
    scene.proxy.cut(statement, side=side)
    scene.worker(by_proxy=True, lease=5.0)

    scene.all_is_well()

    assert scene.proxy.cuts == cuts + 1, "the cut was never made"
    assert len(scene.lines("start", job)) == 1 + arguments.get("errors", 0)
    assert scene.moves(job) == ["retry"] * arguments.get("errors", 0) + ["complete"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_f_23_24_claim_whose_response_was_lost_counts_no_crash(scene: Scene, side: str):
    job = scene.add("proof.quick")
    scene.proxy.cut("FOR UPDATE SKIP LOCKED", side=side)
    scene.worker(by_proxy=True)

    scene.all_is_well()

    assert scene.job(job, "state, errors, crashes") == ("completed", 0, 0)
    assert len(scene.lines("start", job)) == 1


@pytest.mark.more
def test_f_25_terminated_backends_lose_nothing(scene: Scene):
    rng = random.Random(25)
    workers = [scene.worker(concurrency=4, lease=5.0, name=f"worker-{number}") for number in range(2)]
    while len(scene.said("worker_started")) < len(workers):  # one that cannot even register ends, as it should
        assert all(worker.is_alive for worker in workers)
        time.sleep(0.01)
    for _ in range(12):
        for _ in range(4):
            scene.add("proof.chain", length=3)
        scene.add("proof.publish")
        scene.postgres.terminate_backends(rng, 3)
        time.sleep(0.05)

    scene.all_is_well()

    assert scene.said("listen_lost") or scene.said("worker_database_lost") or scene.said("heartbeat_failed")
    assert all(worker.code in (None, -signal.SIGKILL) for worker in workers), "a worker ended by itself"


@pytest.mark.more
@pytest.mark.parametrize("how", ["fast", "immediate", "kill -9 of a backend"])
def test_f_26_27_a_restart_under_load_loses_nothing(scene: Scene, how: str):
    workers = [scene.worker(lease=5.0, beat=0.2, name=f"worker-{number}") for number in range(2)]
    for number in range(10):
        scene.add("proof.steps", steps=4, pause=0.05)
        scene.add("proof.publish")
        if number == 5:
            scene.until(lambda: scene.lines("start") and len(scene.said("worker_started")) == 2)
            scene.conn.close()
            if how == "kill -9 of a backend":
                assert scene.postgres.kill_backend(random.Random(1))
            else:
                scene.postgres.restart(signal.SIGINT if how == "fast" else signal.SIGQUIT)
            scene.reconnect()
    assert all(worker.is_alive for worker in workers), "it waits for the database by itself"

    account = scene.all_is_well()

    assert len(account.execution.jobs) == 20
    assert len(account.execution.records.published) == 10


def test_f_26_worker_survives_a_long_outage(scene: Scene):
    job = scene.add("proof.steps", steps=10, pause=0.05)
    worker = scene.worker(lease=1.0)
    scene.until(lambda: scene.lines("effect", job))
    scene.conn.close()

    scene.postgres.restart(signal.SIGQUIT, down=2.0)

    scene.reconnect()
    after = scene.add("proof.quick")
    scene.until(lambda: scene.job(after)[0] == "completed")
    assert worker.is_alive
    scene.all_is_well()


@pytest.mark.more
def test_f_26_keeper_waits_if_its_executor_dies_during_an_outage(scene: Scene):
    """The next executor cannot connect. That is no mistake of the configuration: the keeper starts another one."""
    keeper = scene.worker(by_proxy=True, mode="keeper", lease=60.0)
    (first,) = scene.until(lambda: scene.said("executor_ready"))
    scene.until(lambda: scene.said("worker_started"))
    scene.proxy.refuse()
    scene.proxy.cut_all()

    os.kill(first["pid"], signal.SIGKILL)
    scene.until(lambda: scene.said("executor_died")[1:] or not keeper.is_alive)
    scene.proxy.heal()

    assert keeper.is_alive, "it ended instead of starting another executor"
    assert "cannot connect" in scene.said("executor_died")[1]["error"]
    job = scene.add("proof.quick")
    scene.until(lambda: scene.job(job)[0] == "completed")
    assert keeper.is_alive
    scene.all_is_well()
