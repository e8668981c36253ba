"""An export on a worker without database credentials: the store's own fence publishes it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.conftest import Api
from factories import add, job
from holdfast.services.exports.export.run import KIND

pytestmark = pytest.mark.processes


async def test_a_remote_worker_exports_and_publishes(api: Api, conn: Any, tmp_path: Path) -> None:
    """W-03: its environment has the address of the API and a token, and none of the database."""
    made = await add(conn, KIND, payload={"sql": "SELECT i AS id FROM range(1000) t(i)", "to": str(tmp_path / "exports")})
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("HOLDFAST_", "PG"))}

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "worker", "remote", "--import", "holdfast.services.exports.kinds", "--drain"),
        cwd=tmp_path, env={**kept, "HOLDFAST_API_URL": api.url, "HOLDFAST_API_TOKEN": api.token},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), 120)

    assert process.returncode == 0, errors.decode()
    done = await job(conn, made)
    assert (done.state, done.error) == ("completed", None)
    assert json.loads((tmp_path / "exports" / "_manifest.json").read_text()) == done.result
    assert done.result["rows"] == 1000
