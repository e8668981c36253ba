"""Autoscaling as it is deployed: `make test-keda`.

A real API server, controller-manager and KEDA with the overlay `small` of `deploy/`. Its pods are processes of our program on
a real Postgres, with the database roles and secrets of the how-to. Trino is the server of the other tests. It prints a log.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from installation import PLANE, Installation, rendered
from installation import installed as installation
from keda import KedaCluster
from pod_processes import parsed

from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.settings import MaintenanceSettings
from iceberg_tables import end_threads
from maintenance_factories import make_table, read_ids
from trino_warehouse import UNLOAD

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED = "/api/stats/queue-depth"
MOVES = """
    SELECT h.move, count(*) FROM holdfast.history h JOIN holdfast.jobs j ON j.id = h.job_id WHERE j.kind = 'exports.export'
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = KedaCluster(tmp_path_factory.mktemp("kube"))
    try:
        made.start()
        made.start_keda()
        yield made
    finally:
        made.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(cluster: KedaCluster, server: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    async with installation(cluster, server, tmp_path_factory.mktemp("node"), "overlay") as made:
        await until_scaled(made)
        yield made


async def until_scaled(made: Installation) -> None:
    async def scaled() -> bool:
        found = [*await made.list("ScaledObject"), *await made.list("ScaledJob")]
        conditions = [one.get("status", {}).get("conditions") or [] for one in found]
        return all(any(is_true(each, "Ready") for each in some) for some in conditions)

    await made.until(scaled, "KEDA has read every trigger")


def is_true(condition: dict[str, str], kind: str) -> bool:
    return condition["type"] == kind and condition["status"] == "True"


# ---------------------------------------------------------------------------------------------------------------------
# Exports: a Deployment from 0 to n and back
# ---------------------------------------------------------------------------------------------------------------------


async def at_zero(made: Installation) -> None:
    async def none() -> bool:
        return await made.replicas() == 0 and not await made.list("pods", app="export-worker")

    await made.until(none, "no export worker is left")


async def test_a_submitted_export_is_not_stranded_when_the_last_worker_is_gone(installed: Installation) -> None:
    """Y-04, E-03: 0 → 1 for the submission, 1 → 0 while Trino works, 0 → 1 for the poll that finds the end."""
    await at_zero(installed)
    installed.trino.hold = True
    snapshot = await installed.snapshot("unload")
    installed.say("one snapshot of three exports is requested; Trino will write the files")

    async def submitted() -> bool:
        return await installed.states("exports.export") == {"submitted": 3}

    await installed.until(submitted, "all three queries run in Trino; no worker holds them")
    await installed.rows(
        "UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() + interval '1 hour' WHERE state = 'submitted' RETURNING 1"
    )
    await at_zero(installed)
    assert await installed.states("exports.export") == {"submitted": 3}
    installed.trino.hold = False
    for query in installed.trino.queries.values():
        query.may_end.set()
    await installed.rows("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE state = 'submitted' RETURNING 1")
    installed.say("Trino has finished; the polls are due")

    await installed.until(lambda: installed.is_ready(snapshot), "the snapshot is ready")
    unloads = [one for one in installed.trino.queries.values() if UNLOAD.search(one.request.sql)]
    assert len(unloads) == 3, "no query was submitted twice"


async def test_running_exports_scale_up_and_none_is_interrupted_on_the_way_to_zero(installed: Installation) -> None:
    """Y-04, Y-05, E-03: 24 exports need three workers; the last one keeps its worker for as long as it runs."""
    await at_zero(installed)
    before, [(last,)] = len(installed.trino.queries), await installed.rows("SELECT coalesce(max(id), 0) FROM holdfast.jobs")
    installed.trino.hold = True
    snapshots = [await installed.snapshot("direct") for _ in range(8)]
    installed.say("8 snapshots of 3 exports are requested; the workers stream the rows")

    async def three() -> bool:
        return await installed.replicas() >= 3

    await installed.until(three, "three workers are asked for")
    kept = await running_query(installed, before)
    release(installed, before, kept)

    async def one_left() -> bool:
        found = await installed.states("exports.export")
        return found.get("running", 0) == 1 and "pending" not in found

    await installed.until(one_left, "one export is left, and runs")
    [(job, attempt)] = await installed.rows(
        "SELECT id, attempt_id FROM holdfast.jobs WHERE kind = 'exports.export' AND state = 'running'"
    )

    async def down_to_one() -> bool:
        return await installed.replicas() == 1

    await installed.until(down_to_one, "down to the one worker that the running export needs")
    end = time.monotonic() + 20  # several cooldown periods of 6 s
    while time.monotonic() < end:
        assert await installed.replicas() == 1, "the worker of a running export was stopped"
        await asyncio.sleep(0.5)
    installed.say("20 s later it still runs, with one worker")
    [(state, same)] = await installed.rows(f"SELECT state, attempt_id FROM holdfast.jobs WHERE id = {job}")
    installed.trino.queries[kept].may_end.set()

    async def all_ready() -> bool:
        return all([await installed.is_ready(one) for one in snapshots])

    await installed.until(all_ready, "all 8 snapshots are ready")
    assert state == "running"
    moves = dict(await installed.rows(f"{MOVES} AND j.id > {last} GROUP BY 1"))
    installed.say(f"what happened to the 24 exports: {moves}; the last one ran as one attempt: {same == attempt}")
    assert not {"rescue", "retry", "fail"} & set(moves), "no export was lost with its pod"
    await at_zero(installed)


async def running_query(made: Installation, before: int) -> str:
    """A query whose rows a worker reads."""

    async def found() -> str | None:
        reads = [one for one in list(made.trino.queries.values())[before:] if one.began and not one.may_end.is_set()]
        return reads[0].id if reads else None

    return str(await made.until(found, "the first exports run"))


def release(made: Installation, before: int, kept: str) -> None:
    """Let every query but one end."""
    made.trino.hold = False
    for query in list(made.trino.queries.values())[before:]:
        if query.id != kept:
            query.may_end.set()


# ---------------------------------------------------------------------------------------------------------------------
# Maintenance: a pod per job
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(installed: Installation) -> Any:
    """Five Iceberg tables of small files, which their owner has written."""
    here: Any = SimpleNamespace(settings=MaintenanceSettings(iceberg_warehouse=str(installed.node.shared / "warehouse")))
    names = [TableRef("default", "sales", f"orders{number}") for number in range(5)]
    for name in names:
        make_table(here, installed.url, files=6, table=name)
    end_threads()
    yield here, names
    end_threads()


async def maintain(made: Installation, table: TableRef) -> int:
    path = f"/api/tables/{table.namespace}/{table.name}/maintenance"
    answer = await made.plane.post(path, json={"actions": ["rewrite_data_files"]})
    assert answer.status_code == 202, answer.text
    return int(answer.json()["data"]["id"])


async def state_of(made: Installation, job: int) -> tuple[str, int]:
    [found] = await made.rows(f"SELECT state, attempt_no FROM holdfast.jobs WHERE id = {job}")
    return str(found[0]), int(found[1])


async def pods_of(made: Installation) -> list[dict[str, Any]]:
    return await made.list("pods", app="maintenance-worker")


def ended(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def ids_in(here: Any, made: Installation, table: TableRef) -> list[int]:
    """The ids in a table. PyIceberg's threads end with the call."""
    try:
        return read_ids(here, made.url, table)
    finally:
        end_threads()


@asynccontextmanager
async def held(made: Installation) -> AsyncIterator[None]:
    """Maintenance pods are scheduled and not started, as while an image is pulled."""
    made.node.held.add("maintenance-worker")
    yield
    made.node.held.clear()


async def test_one_pod_per_job_and_a_surplus_pod_ends_without_work(installed: Installation, tables: Any) -> None:
    """Y-06: three jobs, three pods; one job is cancelled before its pod starts, and that pod ends with `no_work`."""
    here, names = tables
    async with held(installed):
        jobs = [await maintain(installed, name) for name in names[:3]]
        installed.say("three maintenance jobs are requested")

        async def three() -> bool:
            return len(await pods_of(installed)) >= 3

        await installed.until(three, "KEDA has started three Jobs, one for each")
        assert len(await pods_of(installed)) == 3
        answer = await installed.plane.post(f"/api/jobs/{jobs[2]}/cancel", json={"reason": "test"})
        assert answer.status_code < 300, answer.text
        installed.say("one of the jobs is cancelled; the pods start")

    async def done() -> list[dict[str, Any]] | None:
        pods = await pods_of(installed)
        both = [(await state_of(installed, job))[0] for job in jobs[:2]] == ["completed"] * 2
        return pods if both and all(map(ended, pods)) else None

    pods = await installed.until(done, "both jobs are completed, and all pods have ended")
    logs = [parsed(installed.node.log(pod["metadata"]["name"])) for pod in pods]
    taken = [next(line["taken"] for line in log if line["event"] == "keeper_stopped") for log in logs]
    idle = [any(line["event"] == "no_work" for line in log) for log in logs]
    installed.say(f"{len(pods)} pods: {taken.count(1)} ran one job each, {sum(idle)} ended with no_work, all with exit code 0")

    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * len(pods)
    assert sorted(taken)[-3:] == [0, 1, 1]
    assert [not count for count in taken] == idle
    assert [await state_of(installed, job) for job in jobs] == [("completed", 1), ("completed", 1), ("cancelled", 0)]
    assert [ids_in(here, installed, name) for name in names[:3]] == [list(range(60))] * 3


async def test_the_job_of_a_killed_pod_runs_again(installed: Installation, tables: Any) -> None:
    """E-52: SIGKILL in the middle of a commit; Kubernetes does not retry, and KEDA starts a pod for the expired lease."""
    here, names = tables
    before = {pod["metadata"]["name"] for pod in await pods_of(installed)}
    async with await psycopg.AsyncConnection.connect(installed.url) as conn:
        await conn.execute("SELECT FROM holdfast_iceberg.iceberg_tables WHERE table_name = 'orders3' FOR UPDATE")
        job = await maintain(installed, names[3])

        async def waits() -> bool:
            found = await installed.rows(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE iceberg_tables%'"
            )
            return bool(found)

        await installed.until(waits, "the job of a new pod is about to commit")
        [(holder,)] = await installed.rows(
            f"SELECT w.pod FROM holdfast.workers w JOIN holdfast.jobs j ON j.worker_id = w.id WHERE j.id = {job}"
        )
        pod = next(one for one in await pods_of(installed) if one["metadata"]["name"] == holder)
        installed.node.kill(pod)
        installed.say(f"pod {pod['metadata']['name']} is killed")

    async def again() -> bool:
        return await state_of(installed, job) == ("completed", 2)

    await installed.until(again, "another pod has run the job, as its second attempt")
    pods = [one for one in await pods_of(installed) if one["metadata"]["name"] not in before]
    phases = {one["metadata"]["name"]: one["status"]["phase"] for one in pods}
    assert phases[pod["metadata"]["name"]] == "Failed"
    assert ids_in(here, installed, names[3]) == list(range(60))
    made = await installed.list("Job", **{"scaledjob.keda.sh/name": "maintenance-worker"})
    assert [one["status"]["failed"] for one in made if one["status"].get("failed")] == [1], "Kubernetes retries nothing"


# ---------------------------------------------------------------------------------------------------------------------
# The other source of the demand
# ---------------------------------------------------------------------------------------------------------------------


async def test_the_api_replaces_postgres_as_the_source_of_the_demand(installed: Installation, tables: Any) -> None:
    """Q-04: the component metrics-api-trigger. KEDA cannot log in to Postgres any more, and scales all the same."""
    here, names = tables
    await at_zero(installed)
    before = {pod["metadata"]["name"] for pod in await pods_of(installed)}
    ask_the_api(installed)
    async with await psycopg.AsyncConnection.connect(installed.url, autocommit=True) as conn:
        await conn.execute("ALTER ROLE holdfast_autoscaler NOLOGIN")
        await conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'holdfast_autoscaler'")
    installed.say("KEDA may not log in to Postgres any more; its triggers ask the API")

    snapshot, job = await installed.snapshot("direct"), await maintain(installed, names[4])
    installed.say("one snapshot of three exports and one maintenance job are requested")

    async def one() -> bool:
        return await installed.replicas() >= 1

    async def both_done() -> bool:
        return await state_of(installed, job) == ("completed", 1) and await installed.is_ready(snapshot)

    await installed.until(one, "an export worker is asked for")
    await installed.until(both_done, "the snapshot is ready and the maintenance job is completed")
    await at_zero(installed)
    pods = [pod for pod in await pods_of(installed) if pod["metadata"]["name"] not in before]
    requests = await asked_by_keda(installed)
    installed.say(f"{len(pods)} pod for the maintenance job; answers of {ASKED}: {requests}")
    assert pods
    assert ids_in(here, installed, names[4]) == list(range(60))
    assert set(requests) == {"200"}


def ask_the_api(made: Installation) -> None:
    """Apply the overlay with the component. There is no cluster DNS: the service has the address of its pod."""
    for one in rendered("overlay-metrics-api"):
        if one["apiVersion"] == "keda.sh/v1alpha1":
            made.apply(json.loads(json.dumps(one).replace("//control-plane.holdfast.svc:", f"//{PLANE}:")))


async def asked_by_keda(made: Installation) -> dict[str, int]:
    """How often the demand was asked for, by the status of the answer."""
    lines = (await made.plane.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith("holdfast_http_requests_total") and f'"{ASKED}"' in line]
    return {line.partition('status="')[2].partition('"')[0]: int(float(line.rpartition(" ")[2])) for line in found}
