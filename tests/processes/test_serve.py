"""The control plane as a real process: closed by default, streams that resume, a stop that does not wait, and no secrets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

import programs
from factories import add, end, hold, rows, take, value
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.jobs import progress
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Snooze
from holdfast.jobs.pipelines import Pipeline
from serving import PATIENCE, serving

pytestmark = pytest.mark.processes

GATEWAY_SECRET = "canary-gateway-0123456789"


async def events(answer: httpx2.Response) -> AsyncIterator[tuple[str, str | None, Any]]:
    """The events of a stream: name, id, data."""
    event: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line and not line.startswith(":"):
            name, _, rest = line.partition(": ")
            event[name] = rest
        elif not line and "event" in event:
            yield event["event"], event.get("id"), json.loads(event["data"])
            event = {}


@pytest.mark.more
def test_login_link_works_once_and_is_not_logged(database: str, tmp_path: Path) -> None:
    """Where nobody can sign in yet, and only there."""
    config = {**os.environ, "HOLDFAST_CONFIG_DIR": str(tmp_path / "config")}

    def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
        return programs.run(*words, env=config, folder=tmp_path)

    with serving(database, tmp_path, "--no-loops") as served:
        link = served._wait_for(r"\n *(http://\S+/login\?code=\S+)")

        signed_in = holdfast("auth", "login", link)
        again = holdfast("auth", "login", link)
        me = holdfast("auth", "whoami", "-o", "json")

        assert (signed_in.returncode, again.returncode) == (0, 4), signed_in.stderr + again.stderr
        assert json.loads(me.stdout)["role"] == "admin", me.stderr
        logged = [line for line in served.log.read_text().splitlines() if line.startswith("{")]
        assert not [line for line in logged if link.partition("code=")[2] in line]


async def test_reconnecting_client_misses_no_event_of_a_job(database: str, tmp_path: Path, conn: Any) -> None:
    """K-50, K-51: progress and moves as they come; Last-Event-ID resumes; the end is told, and 204 says not to come back."""
    job_id = await add(conn)
    with serving(database, tmp_path, "--no-loops") as served:
        async with served.client() as client, asyncio.timeout(PATIENCE):
            async with client.stream("GET", f"/api/jobs/{job_id}/events") as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                assert answer.headers["X-Accel-Buffering"] == "no"
                stream = events(answer)
                assert (await anext(stream))[2]["state"] == "pending"
                claim = await take(conn, job_id)
                await progress.report(conn, claim, progress=0.5, message="half way")
                while (seen := await anext(stream))[2].get("message") != "half way":
                    pass
                assert (seen[0], seen[2]["progress"]) == ("job", 0.5)
                await end(conn, claim, Snooze(timedelta(0)))
                while (seen := await anext(stream))[0] != "move":
                    pass
                assert seen[2]["move"] == "snooze"
                last = seen[1]
            await end(conn, await take(conn, job_id))

            async with client.stream("GET", f"/sync/jobs/{job_id}/stream", headers={"Last-Event-ID": str(last)}) as answer:
                rest = [(name, data.get("move")) async for name, _, data in events(answer)]
            assert rest == [("move", "complete"), ("job", None), ("stream_closed", None)], "what it had seen is not told again"
            newest = await value(conn, "SELECT max(id) FROM holdfast.history WHERE job_id = %s", job_id)
            gone = await client.get(f"/api/jobs/{job_id}/events", headers={"Last-Event-ID": str(newest)})
            assert gone.status_code == 204
            assert (await client.get("/api/jobs/4711/events")).status_code == 404


@pytest.mark.more
async def test_streams_share_one_database_connection(database: str, tmp_path: Path, conn: Any) -> None:
    """K-51."""
    pipeline = Pipeline("nightly")
    pipeline.add(NewJob("k"))
    (made,) = await pipeline.enqueue(conn)
    with serving(database, tmp_path, "--no-loops", HOLDFAST_HTTP_CONNECTIONS="2") as served:
        async with served.client() as client, asyncio.timeout(PATIENCE):

            async def follow(path: str, until: Any) -> Any:
                async with client.stream("GET", path) as answer:
                    async for event in events(answer):
                        if until(event):
                            return event
                return None

            watching = [
                asyncio.create_task(follow(f"/api/pipelines/{pipeline.id}/events", lambda event: event[0] == "stream_closed"))
                for _ in range(20)
            ]
            console = asyncio.create_task(
                follow("/api/events", lambda event: event[2].get("jobs", {}).get("completed", {}).get("value") == 1)
            )
            metrics = ""
            while "holdfast_streams 21.0" not in metrics:
                metrics = (await client.get("/metrics")).text
            listeners = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
            assert await value(conn, listeners) <= 2, "one for the streams, one for the worker inside"
            await end(conn, await take(conn, made.id))

            assert {(await one)[2]["status"] for one in watching} == {"completed"}
            assert (await console)[0] == "overview"


@pytest.mark.more
async def test_shutdown_does_not_wait_for_streams(database: str, tmp_path: Path, conn: Any) -> None:
    job_id = await add(conn)
    with serving(database, tmp_path) as served:
        async with served.client() as client, asyncio.timeout(PATIENCE):
            async with client.stream("GET", f"/api/jobs/{job_id}/events") as answer:
                stream = events(answer)
                await anext(stream)
                served.process.send_signal(signal.SIGTERM)
                assert "stream_closed" not in [name async for name, _, _ in stream], "it ends, and the job has not"
            assert served.process.wait(PATIENCE) == 0
    assert await rows(conn, "SELECT count(*) FROM holdfast.workers WHERE stopped_at IS NULL") == [(0,)]


@pytest.mark.more
def test_second_signal_ends_the_wait_for_a_request_without_a_traceback(database: str, tmp_path: Path) -> None:
    with serving(database, tmp_path, "--no-loops") as served:
        address = (urlsplit(served.url).hostname, urlsplit(served.url).port)

        def refuses_connections() -> bool:
            try:
                socket.create_connection(address).close()
            except ConnectionRefusedError:
                return True
            return False

        with socket.create_connection(address, timeout=PATIENCE) as client:
            head = ("POST /api/jobs HTTP/1.1", "Host: x", f"Authorization: Bearer {served.token}", "Content-Length: 9")
            client.sendall("\r\n".join((*head, "Content-Type: application/json", "Expect: 100-continue", "", "")).encode())
            assert client.recv(100).startswith(b"HTTP/1.1 100"), "it reads the request"
            served.process.send_signal(signal.SIGINT)
            served.until(refuses_connections)
            served.process.send_signal(signal.SIGINT)
            assert served.process.wait(PATIENCE) == 0

        assert "Traceback" not in served.log.read_text()


@pytest.mark.more
async def test_serve_runs_loops_and_bulk_jobs(database: str, tmp_path: Path, conn: Any) -> None:
    """Y-01: nothing else needs to be started."""
    jobs = [await add(conn) for _ in range(3)]
    with serving(database, tmp_path) as served:
        async with served.client() as client, asyncio.timeout(PATIENCE):
            asked = {"action": "cancel", "filter": "state:pending kind:k", "reason": "r", "dry_run": False, "expected_count": 3}
            place = (await client.post("/api/jobs/bulk", json=asked)).headers["Location"]
            while (await client.get(place)).json()["data"]["state"] != "completed":
                await asyncio.sleep(0.05)
            assert (
                await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE id = ANY (%s) AND state = 'cancelled'", jobs) == 3
            )
            while not (await client.get("/api/ops/jobs/status")).json()["data"]:
                await asyncio.sleep(0.05)
            text = (await client.get("/metrics")).text
            assert "background_job_health_status" in text
            assert (await client.get("/ready")).json()["data"]["ready"] is True


def refuses(database: str, tmp_path: Path, *arguments: str, **environment: str) -> str:
    words = ("serve", "--dsn", database, "--port", "0", *arguments)
    ended = programs.run(*words, env=os.environ | environment, folder=tmp_path)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr


@pytest.mark.more
def test_public_address_without_authentication_is_refused(database: str, tmp_path: Path) -> None:
    """Closed by default."""
    assert "holdfast auth token create" in refuses(database, tmp_path, "--host", "0.0.0.0")
    assert "list the addresses of the proxies" in refuses(database, tmp_path, HOLDFAST_PROXIES="*")
    assert "HOLDFAST_OIDC_AUDIENCE" in refuses(database, tmp_path, HOLDFAST_OIDC_ISSUER="https://id.example")
    assert "there are: viewer" in refuses(database, tmp_path, HOLDFAST_GATEWAY_ROLES='{"a": "root"}')


@pytest.mark.more
async def test_first_login_token_is_revoked_at_shutdown(database: str, tmp_path: Path, conn: Any) -> None:
    with serving(database, tmp_path, "--no-loops") as served:
        token = served.token
        async with served.client() as client:
            assert (await client.get("/api/whoami")).json()["data"]["role"] == "admin"
    assert await value(conn, "SELECT revoked_at IS NOT NULL FROM holdfast.tokens") is True

    _, other = await create_token(conn, "ada", Role.ADMIN, by="test")
    with serving(database, tmp_path, "--no-loops") as served:
        assert "/login?code=" not in served.log.read_text(), "somebody can sign in already"
        async with served.client(token) as client:
            assert (await client.get("/api/whoami")).status_code == 401
        async with served.client(other) as client:
            assert (await client.get("/api/whoami")).status_code == 200


@pytest.mark.more
async def test_restart_after_a_crash_issues_a_new_link_and_revokes_the_old_token(
    database: str, tmp_path: Path, conn: Any
) -> None:
    """Nobody could take back what it had promised to end with itself; whoever starts next does."""
    with serving(database, tmp_path, "--no-loops") as served:
        token = served.token
        with serving(database, tmp_path / "beside", "--no-loops") as beside:  # one that lives keeps its own
            assert "/login?code=" not in beside.log.read_text()
            async with beside.client(token) as client:
                assert (await client.get("/api/whoami")).status_code == 200
        served.process.kill()
        served.process.wait(PATIENCE)
    assert await value(conn, "SELECT count(*) FROM holdfast.tokens WHERE revoked_at IS NULL") == 1
    await ended_sessions(conn)

    with serving(database, tmp_path, "--no-loops") as served:
        assert served.token != token, "there is a link, and it is good for a token of its own"
        async with served.client(token) as client:
            assert (await client.get("/api/whoami")).status_code == 401


async def ended_sessions(conn: Any) -> None:
    """Wait until Postgres has seen that a killed process is gone."""
    others = """
        SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE l.locktype = 'advisory' AND d.datname = current_database()
    """
    async with asyncio.timeout(PATIENCE):
        while await value(conn, others):
            await asyncio.sleep(0.05)


@pytest.mark.more
async def test_first_token_can_be_created_by_command(database: str, tmp_path: Path, conn: Any) -> None:
    words = ("auth", "token", "create", "ada", "--role", "ops", "--reason", "on call", "--dsn", database)
    made = programs.run(*words, folder=tmp_path)
    assert made.returncode == 0, made.stderr

    token = re.search(r"hf_[a-z0-9]{8}_[\w-]{43}", made.stdout)
    assert token is not None, made.stdout
    ((action, reason),) = await rows(conn, "SELECT action, reason FROM holdfast.audit")
    assert (action, reason) == ("tokens.write", "on call")
    with serving(database, tmp_path, "--no-loops") as served:
        async with served.client(token[0]) as client:
            assert (await client.get("/api/whoami")).json()["data"]["actor"] == "token:ada"


@pytest.mark.more
async def test_f_75_secrets_are_never_shown_and_log_lines_cannot_be_forged(database: str, tmp_path: Path, conn: Any) -> None:
    """Q-02, V-04: canaries in every slot; looked for in logs, answers, events, audit and metrics."""
    _, token = await create_token(conn, "canary", Role.ADMIN, by="test")
    secrets = {
        "the database's password": urlsplit(database).password or "",
        "the gateway's secret": GATEWAY_SECRET,
        "a token": token.split("_", 2)[2],
        "a forged token": "B" * 43,
        "a basic password": "canary-basic-password",
        "a JWT": "eyJhbGciOiJIUzI1NiJ9.canary-claims.canary-signature",
    }
    _, of_worker = await create_token(conn, "canary worker", Role.WORKER, by="test")
    claim = await hold(conn, kind="says")
    told = []
    with serving(database, tmp_path, "--no-loops", HOLDFAST_GATEWAY_SECRET=GATEWAY_SECRET) as served:
        async with served.client(token) as client:
            anyone = {"Authorization": ""}
            for headers in (
                {},
                anyone | {"X-Holdfast-Gateway": GATEWAY_SECRET, "X-Forwarded-User": "ada\\nevent=forged"},
                anyone | {"X-Holdfast-Gateway": GATEWAY_SECRET + "x", "X-Forwarded-User": "ada"},
                {"Authorization": f"Bearer hf_aaaaaaaa_{'B' * 43}"},
                {"Authorization": "Basic canary-basic-password"},
                {"Authorization": f"Bearer {secrets['a JWT']}"},
            ):
                for path in ("/api/jobs", "/api/whoami", "/api/tokens", "/api/audit", "/metrics", "/api/config", "/nowhere"):
                    told.append((await client.get(path, headers=headers)).text)
                told.append((await client.post("/api/jobs", json={"kind": "k"}, headers=headers)).text)
            told.append((await client.get("/api/jobs/1%0a%7b%22event%22:%22forged%22%7d")).text)
            lines = [_said(number, what, secret) for number, (what, secret) in enumerate(secrets.items(), 1)]
            as_worker = {"Authorization": f"Bearer {of_worker}", "If-Match": f'"{claim.attempt_id}"'}
            kept = await client.post(f"/api/worker/jobs/{claim.id}/logs", json={"lines": lines}, headers=as_worker)
            assert kept.status_code == 204, kept.text
            told.append((await client.get(f"/api/jobs/{claim.id}/logs")).text)
            assert told[-1].count("canary line") == len(secrets)
            await conn.execute("ALTER TABLE holdfast.jobs RENAME TO jobs_away")  # a fault of ours, with all its traces
            told.append((await client.get("/api/jobs")).text)
            await conn.execute("ALTER TABLE holdfast.jobs_away RENAME TO jobs")
            await client.aclose()
    log = served.log.read_text()

    assert "http_fault" in log
    assert {json.loads(line)["event"] for line in log.splitlines() if line.startswith("{")} >= {"http_request", "http_fault"}
    assert "forged" not in {json.loads(line)["event"] for line in log.splitlines() if line.startswith("{")}
    kept = [
        line
        for name in ("audit", "history", "idempotency", "tokens", "log_lines")
        for (line,) in await rows(conn, f"SELECT t::text FROM holdfast.{name} t")
    ]
    for what, secret in secrets.items():
        assert len(secret) > 8, what
        assert secret not in log, what
        assert not any(secret in text for text in told), what
        assert not any(secret in line for line in kept), what


def _said(number: int, what: str, secret: str) -> dict[str, Any]:
    """A line of a careless handler, as a worker sends it: the secret where secrets usually stand."""
    where = {"password": secret, "headers": {"Authorization": f"Bearer {secret}"}, "url": f"postgresql://ops:{secret}@db/x"}
    message = f"canary line: {what}, password={secret}"
    return {"number": number, "said_at": "2026-01-01T00:00:00Z", "level": "error", "message": message, "fields": where}
