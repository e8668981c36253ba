"""`holdfast worker remote` as a real process that knows no database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from conformance.conftest import Api
from factories import add, job, value

MODULE = """
import asyncio

from holdfast import Context, job


@job("remote.double")
async def double(ctx: Context, n: int) -> int:
    await ctx.progress(0.5, "half")
    return 2 * n


@job("remote.endless")
async def endless(ctx: Context) -> None:
    await asyncio.Event().wait()
"""

pytestmark = pytest.mark.processes


async def start(folder: Path, api: Api, *options: str, **more: str) -> asyncio.subprocess.Process:
    (folder / "remote_kinds.py").write_text(MODULE)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("HOLDFAST_", "PG"))}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "worker", "remote", "--import", "remote_kinds", "--log-format", "json", *options,
        cwd=folder, env={**kept, "HOLDFAST_API_URL": api.url, **more}, stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.more
async def test_remote_worker_reads_its_token_from_a_file_and_drains(api: Api, conn: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{api.token}\n")
    made = [await add(conn, "remote.double", payload={"n": n}) for n in range(5)]

    process = await start(tmp_path, api, "--drain", HOLDFAST_API_TOKEN_FILE=str(tmp_path / "token"))
    _, errors = await asyncio.wait_for(process.communicate(), 120)

    assert process.returncode == 0, errors.decode()
    assert [(await job(conn, one)).result for one in made] == [0, 2, 4, 6, 8]
    assert await value(conn, "SELECT runner FROM holdfast.workers") == "remote"
    assert not (tmp_path / ".holdfast").exists(), "no database was started"


@pytest.mark.more
async def test_sigterm_releases_running_jobs(api: Api, conn: Any, tmp_path: Path) -> None:
    made = await add(conn, "remote.endless")
    process = await start(tmp_path, api, HOLDFAST_API_TOKEN=api.token, HOLDFAST_GRACE_SECONDS="0.1")
    async with asyncio.timeout(120):
        while (await job(conn, made)).state != "running":
            await asyncio.sleep(0.02)

    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 120)

    job_now = await job(conn, made)
    assert (process.returncode, job_now.state, job_now.crashes) == (0, "pending", 0)


@pytest.mark.more
async def test_missing_options_are_reported(api: Api, tmp_path: Path) -> None:
    """G-04: CONTROL_PLANE_URL is required, as HOLDFAST_API_URL."""
    for more, sentence in (
        ({"HOLDFAST_API_URL": ""}, "the address of the API must start with http:// or https://"),
        ({"HOLDFAST_API_TOKEN": "hf_wrong"}, "does not accept this worker's token (401)"),
        ({"HOLDFAST_API_TOKEN_FILE": "/nowhere"}, "there is no token file /nowhere"),
    ):
        process = await start(tmp_path, api, **more)
        _, errors = await asyncio.wait_for(process.communicate(), 120)
        said = " ".join(errors.decode().split())
        assert (process.returncode, sentence in said) == (1, True), said
        assert "Traceback" not in said


async def test_probe_answers_without_a_database(api: Api, conn: Any, tmp_path: Path) -> None:
    """Ready once a beat got through, not while it is on its way out; what it counted is there to be scraped."""
    made = await add(conn, "remote.double", payload={"n": 1})
    await add(conn, "remote.endless")
    process = await start(tmp_path, api, "--http", "0", HOLDFAST_API_TOKEN=api.token, HOLDFAST_GRACE_SECONDS="60")
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while b"probe_listening" not in (line := await process.stderr.readline()):
            assert line, "it ended"
        async with httpx2.AsyncClient(base_url=json.loads(line)["url"], trust_env=False, timeout=30) as client:
            while (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.05)
            assert (await client.get("/health")).json()["data"]["status"] == "ok"
            while (await job(conn, made)).state != "completed":
                await asyncio.sleep(0.05)
            counted = 'holdfast_attempts_total{kind="remote.double",outcome="complete"} 1.0'
            while counted not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.05)

            process.send_signal(signal.SIGTERM)
            while (answer := await client.get("/ready")).status_code == 200:
                await asyncio.sleep(0.05)
            assert answer.json()["detail"] == "it is stopping and claims no more jobs"
    process.kill()
    await process.communicate()
