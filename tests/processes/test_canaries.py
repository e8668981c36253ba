"""F-75: secrets planted wherever there is a place for one, and looked for wherever something is written or answered.

Engine and store are one server that repeats in its answers every header that it was sent, as a careless proxy would.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

import programs
from factories import rows
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from serving import PATIENCE, serving

pytestmark = pytest.mark.processes

TRINO, S3_KEY, S3_SECRET, PAYLOAD = (
    "canary-trino-pass",
    "CANARYS3KEY12345",
    "canary-s3-secret-0123456789",
    "canary-of-a-payload",
)


class Parrot(BaseHTTPRequestHandler):
    """Refuses everything, and repeats what it was sent."""

    heard: ClassVar[list[str]] = []  # what it was told as a secret

    def _refuse(self) -> None:
        self.heard.append(self.headers.get("authorization", ""))
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.dumps({"message": "no", "you sent": dict(self.headers)}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _refuse  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def parrot() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Parrot)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def holdfast(*words: str, cwd: Path, **environment: str) -> str:
    """Everything that a command wrote."""
    ended = programs.run(*words, env=os.environ | environment, folder=cwd)
    return ended.stdout + ended.stderr


@pytest.mark.more  # tests/unit/telemetry/test_redact.py has the single ways
async def test_f_75_secrets_in_every_setting_appear_nowhere(database: str, tmp_path: Path, conn: Any, parrot: str) -> None:
    """Q-02, V-04: logs, errors, events, answers, audit, history, and what commands print."""
    _, admin = await create_token(conn, "canary", Role.ADMIN, by="test")
    _, worker = await create_token(conn, "canary worker", Role.WORKER, by="test")
    outside = {
        "HOLDFAST_TRINO_URL": parrot, "HOLDFAST_TRINO_USER": "ada", "HOLDFAST_TRINO_PASSWORD": TRINO,
        "HOLDFAST_EXPORT_DIRS": str(tmp_path), "HOLDFAST_EXPORT_BUCKETS": "s3://bucket",
        "HOLDFAST_S3_ENDPOINT": parrot, "HOLDFAST_S3_REGION": "eu-west-1",
        "HOLDFAST_S3_ACCESS_KEY_ID": S3_KEY, "HOLDFAST_S3_SECRET_ACCESS_KEY": S3_SECRET,
    }  # fmt: skip
    told: dict[str, str] = {}
    with serving(database, tmp_path, "--no-loops", **outside) as served:
        async with served.client(admin) as client, asyncio.timeout(5 * PATIENCE):
            for engine, to in (("trino", str(tmp_path / "out")), ("duckdb", "s3://bucket/out")):
                payload = {"sql": "SELECT 1 AS a", "engine": engine, "to": to, "role": "r"}
                asked = {"kind": "exports.run", "payload": payload, "max_attempts": 1}
                told[f"enqueue {engine}"] = (await client.post("/api/jobs", json=asked)).text
            asked = {"kind": "exports.run", "payload": {"sql": 1, "note": PAYLOAD}, "max_attempts": 1}
            told["a wrong payload"] = (await client.post("/api/jobs", json=asked)).text.replace(PAYLOAD, "")
            told["worker"] = await asyncio.to_thread(
                holdfast, "worker", "run", "--drain", "--dsn", database, "--log-format", "json", cwd=tmp_path, **outside
            )
            told["remote worker"] = await asyncio.to_thread(
                holdfast, "worker", "remote", "--drain", "--url", served.url, "--log-format", "json", cwd=tmp_path,
                HOLDFAST_API_TOKEN=worker, **outside,
            )  # fmt: skip
            jobs = (await client.get("/api/jobs")).json()["data"]
            assert {job["state"] for job in jobs} == {"failed"}, jobs
            for job in jobs:
                for what in ("", "/history", "/attempts", "/explain", "/logs", "/events"):
                    told[f"job {job['id']}{what}"] = (await client.get(f"/api/jobs/{job['id']}{what}")).text
            for path in ("/api/failures", "/api/audit", "/api/config", "/api/tokens", "/api/doctor", "/metrics",
                         "/api/schema/catalogs", "/api/workers", "/api/ops/state", "/openapi.json"):  # fmt: skip
                told[path] = (await client.get(path)).text
        signed = {"HOLDFAST_TOKEN": admin, "HOLDFAST_API_URL": served.url, **outside}
        for words in (["config", "show", "-o", "json"], ["doctor", "-o", "json"], ["job", "show", "99999", "--debug"],
                      ["job", "list", "-o", "name"], ["auth", "whoami"]):  # fmt: skip
            told[" ".join(words)] = await asyncio.to_thread(holdfast, *words, cwd=tmp_path, **signed)
        straight = ["job", "show", "99999", "--debug", "--dsn", database]
        told["straight to the database"] = await asyncio.to_thread(holdfast, *straight, cwd=tmp_path)
    told["log of the control plane"] = served.log.read_text()
    for table in ("audit", "history", "effects", "idempotency", "tokens", "log_lines"):
        told[f"table {table}"] = "\n".join(line for (line,) in await rows(conn, f"SELECT t::text FROM holdfast.{table} t"))
    told["errors of jobs"] = "\n".join(line for (line,) in await rows(conn, "SELECT error || cause FROM holdfast.jobs"))

    secrets = {
        "the database's password": urlsplit(database).password or "",
        "Trino's password": TRINO,
        "Trino's password as it is sent": base64.b64encode(f"ada:{TRINO}".encode()).decode(),
        "the store's secret": S3_SECRET,
        "HOLDFAST_TOKEN": admin.split("_", 2)[2],
        "the token of a remote worker": worker.split("_", 2)[2],
    }
    assert any(secrets["Trino's password as it is sent"] in one for one in Parrot.heard), "the engine was asked with it"
    assert any(S3_KEY in one for one in Parrot.heard), "and so was the store"
    for what, secret in secrets.items():
        assert len(secret) > 8, what
        assert [where for where, text in told.items() if secret in text] == [], what
    written = {
        where: text for where, text in told.items() if where.startswith(("log", "worker", "remote", "/metrics", "table"))
    }
    assert [where for where, text in written.items() if PAYLOAD in text] == [], "what a job carries is in no log"


async def test_f_75_login_code_is_not_logged(database: str, tmp_path: Path, conn: Any) -> None:
    """It stands once on the terminal, for the person there, and nowhere else."""
    with serving(database, tmp_path, "--no-loops") as served:
        assert served.token.startswith("hf_")
        code = served._wait_for(r"/login\?code=(\S+)")
        async with served.client() as client:
            answers = [
                (await client.get(path)).text for path in ("/api/audit", "/api/tokens", "/api/whoami", f"/login?code={code}")
            ]
    logged = [line for line in served.log.read_text().splitlines() if line.startswith("{")]

    assert logged
    kept = [line for name in ("audit", "tokens") for (line,) in await rows(conn, f"SELECT t::text FROM holdfast.{name} t")]
    for secret in (code, served.token.split("_", 2)[2]):
        assert not [text for text in (*logged, *answers, *kept) if secret in text]
