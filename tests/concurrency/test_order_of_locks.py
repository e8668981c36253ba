"""Whoever ends jobs holds rows first and keys after, each in one order: these schedules once met halfway."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [7808, 1768, 2058, 5507, 2101, 3988])
async def test_a_schedule_that_once_deadlocked_does_not_any_more(server: str, seed: int) -> None:
    """An end with dependants that hold locks beside a claim, a cancel and an enqueue that want the same keys."""
    played = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "proof.schedules", "--seed", str(seed)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(played.communicate(), 120)

    assert played.returncode == 0, said.decode()[-2000:]
    assert b"1 played, 0 with violations" in said
