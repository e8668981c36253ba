"""Completion knows what is loaded only when it is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast jo", "job"),
        ("holdfast periodic ru", "run"),
        ("holdfast job list --sta", "--state"),
        ("holdfast job list --state fa", "failed"),
    ],
)
def test_a_shell_is_told_what_could_follow(typed: str, offered: str) -> None:
    words = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}

    command = [sys.executable, "-m", "holdfast"]
    told = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True, check=False)

    assert offered in told.stdout.split(), told.stderr
