"""A worker's own `/health`, `/ready` and `/metrics`, on real processes: what they say, and when they say no."""

from __future__ import annotations

import json
import os
import socket
from asyncio import Event, Future, new_event_loop
from http.client import HTTPConnection
from typing import Any

import psycopg
import pytest
from keepers import KILL, TERM, Kept, Start, is_asleep_in_native_code, row, state, until
from prometheus_client.parser import text_string_to_metric_families
from proof.proxy import Proxy

from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue_sync
from holdfast.jobs.model import NewJob
from holdfast.worker.keeper.executor_process import ExecutorProcess
from holdfast.worker.keeper.messages import MessageChannel
from holdfast.worker.probe import MOST_AT_ONCE, Probe, parse_address

pytestmark = pytest.mark.processes
Conn = psycopg.Connection[Any]


def get(kept: Kept, path: str) -> tuple[int, Any]:
    """What the probe answers: the status, and its body as JSON where it is."""
    host, port = kept.hears("probe_listening")[0]["url"].removeprefix("http://").split(":")
    channel = HTTPConnection(host, int(port), timeout=30)
    try:
        channel.request("GET", path)
        answer = channel.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if "json" in (answer.getheader("Content-Type") or "") else body.decode()
    finally:
        channel.close()


def is_ready(kept: Kept) -> bool:
    return get(kept, "/ready")[0] == 200


def samples(kept: Kept, name: str) -> dict[str, float]:
    """A metric by its labels' values."""
    status, text = get(kept, "/metrics")
    assert status == 200
    found = [one for family in text_string_to_metric_families(text) for one in family.samples if one.name == name]
    return {" ".join(one.labels.values()): one.value for one in found}


def test_y_03_worker_is_ready_from_registration_to_shutdown(start: Start, db: Conn):
    job = enqueue_sync(db, NewJob("until_told")).id
    kept = start("--http", "127.0.0.1:0", "--executors", "2")
    until(lambda: is_ready(kept), "it never became ready")
    until(lambda: state(db, job) == "running")

    assert get(kept, "/health")[1]["data"]["status"] == "ok"
    (revision,) = db.execute("SELECT version_num FROM holdfast.alembic_version").fetchone() or ("",)
    said = get(kept, "/ready")[1]["data"]
    assert (said["database"], said["schema_revision"], said["registered"], said["executors"]) == ("ok", revision, 2, 2)
    assert get(kept, "/ready?verbose=1")[0] == 200
    status, problem = get(kept, "/jobs")
    assert (status, problem["code"]) == (404, "NOT_FOUND")

    enqueue_sync(db, NewJob("native", payload={"seconds": 60}))
    until(lambda: kept.said().splitlines().count("begun") == 2)
    kept.signal(TERM)
    until(lambda: get(kept, "/ready")[0] == 503)
    status, problem = get(kept, "/ready")
    assert (status, problem["code"], problem["detail"]) == (503, "NOT_READY", "it is stopping and claims no more jobs")
    assert get(kept, "/health")[0] == 200
    kept.signal(TERM)
    kept.wait()


def test_keeper_answers_while_a_handler_holds_the_gil(start: Start, db: Conn):
    kept = start("--http", "0")
    until(lambda: is_ready(kept))
    until(lambda: samples(kept, "holdfast_lease_renewals_total"))
    enqueue_sync(db, NewJob("native", payload={"seconds": 600}))
    until(lambda: is_asleep_in_native_code(kept.executor()))

    assert get(kept, "/health")[0] == 200
    assert is_ready(kept)
    assert samples(kept, "holdfast_lease_renewals_total")  # the keeper's own, and what the executor said before


def test_lost_database_is_not_ready_but_healthy(start: Start, database: str):
    proxy = Proxy(database)
    kept = start("--http", "0", url=proxy.url)
    until(lambda: is_ready(kept))
    proxy.swallow()

    until(lambda: get(kept, "/ready")[1].get("detail") == "the database cannot be reached")
    assert get(kept, "/ready")[0] == 503
    assert get(kept, "/health")[0] == 200
    assert get(kept, "/metrics")[0] == 200
    kept.signal(KILL)
    kept.wait()
    proxy.close()


def test_other_schema_version_is_not_ready(start: Start, db: Conn):
    kept = start("--http", "0")
    until(lambda: is_ready(kept))

    db.execute("UPDATE holdfast.alembic_version SET version_num = '0001'")

    until(lambda: get(kept, "/ready")[0] == 503)
    assert "the schema is at 0001" in get(kept, "/ready")[1]["detail"]


def test_executor_with_an_expired_lease_is_not_ready(start: Start, db: Conn):
    kept = start("--http", "0", HOLDFAST_LEASE_SECONDS="1")
    until(lambda: is_ready(kept))

    with db.transaction():  # whoever holds the row keeps every beat from it, and the lease runs out
        db.execute("SELECT FROM holdfast.workers FOR UPDATE")
        until(lambda: get(kept, "/ready")[0] == 503)
        assert get(kept, "/ready")[1]["detail"] == "0 of 1 executors are registered with a valid lease"
    until(lambda: is_ready(kept))


def test_metrics_of_executors_are_summed_and_outlive_them(start: Start, db: Conn):
    """Without counting twice: the replacement begins at nothing, and what its predecessor had counted stays."""
    kept = start("--http", "0")
    first = kept.executor()
    for _ in range(7):
        enqueue_sync(db, NewJob("quick"))
    until(lambda: samples(kept, "holdfast_attempts_total").get("quick complete") == 7)
    endless = enqueue_sync(db, NewJob("endless")).id
    until(lambda: samples(kept, "holdfast_worker_jobs").get("running") == 1)

    os.kill(first, KILL)
    until(lambda: row(db, endless)[:2] == ("running", 2))
    until(lambda: is_ready(kept))
    assert samples(kept, "holdfast_attempts_total")["quick complete"] == 7
    assert samples(kept, "holdfast_executor_deaths_total") == {"SIGKILL": 1}
    for _ in range(5):
        enqueue_sync(db, NewJob("quick"))

    until(lambda: samples(kept, "holdfast_attempts_total")["quick complete"] == 12)  # the replacement's figures are here
    until(lambda: sum(samples(kept, "holdfast_worker_jobs").values()) == 1, "what the dead one was at is still counted")
    assert samples(kept, "holdfast_attempt_run_seconds_count")["quick complete"] == 12
    assert samples(kept, "holdfast_attempt_wait_seconds_bucket")["quick +Inf"] == 12


def test_probe_listens_on_loopback_by_default_and_reports_a_busy_port(start: Start):
    assert parse_address("8081") == parse_address(":8081") == ("127.0.0.1", 8081)
    assert parse_address("0.0.0.0:8081") == ("0.0.0.0", 8081)
    assert parse_address("[::]:80") == ("::", 80)
    for wrong in ("here", "127.0.0.1", "1:99999", ""):
        with pytest.raises(UsageError, match="HOST:PORT"):
            parse_address(wrong)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        kept = start(HOLDFAST_WORKER_HTTP=str(taken.getsockname()[1]))
        assert kept.wait() == 1
    assert "Address already in use" in kept.said()
    assert "Traceback" not in kept.said()


class Quiet:
    """A subject that is well."""

    def health(self) -> dict[str, Any]:
        return {"status": "ok"}

    ready = health

    def metrics(self) -> bytes:
        return b""


def was_answered(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        try:
            line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return line.recv(100).startswith(b"HTTP/1.0 200")
        except ConnectionError:
            return False


def test_silent_clients_cannot_exhaust_the_threads():
    probe = Probe("0", Quiet())
    assert was_answered(probe.port)
    silent = [socket.create_connection(("127.0.0.1", probe.port)) for _ in range(MOST_AT_ONCE)]
    try:
        until(lambda: not was_answered(probe.port), "there was always one more thread")
    finally:
        for each in silent:
            each.close()
    until(lambda: was_answered(probe.port), "those who left still held their places")
    probe.close()


def test_unanswered_request_for_figures_is_not_repeated():
    loop = new_event_loop()
    ours, theirs = socket.socketpair()
    child = ExecutorProcess.__new__(ExecutorProcess)
    child._channel, child.ready_at, child.exited, child.answered = MessageChannel(ours), 0.0, Future(loop=loop), Event()
    child.answered.set()

    assert [child.ask_figures() for _ in range(3)] == [True, False, False]

    child._on_figures = lambda _: None
    child._handle({"type": "figures", "families": []})
    assert child.ask_figures()
    ours.close()
    assert theirs.makefile().read().count("figures") == 2
    theirs.close()
    loop.close()
