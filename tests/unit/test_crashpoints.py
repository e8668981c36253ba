"""The list of crash points is the truth: each is in the code, and the code has no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.crashpoints import POINTS

SOURCE = Path(holdfast.__file__).parent
CALLED_BY_ENGINES = {"submit.after_send"}  # by what talks to an engine; none is here yet


def points_in_the_code() -> set[str]:
    calls = r"(?:crashpoint|dies_inside)\(\"([\w.]+)\"\)"
    return {
        name for path in SOURCE.rglob("*.py") if path.name != "crashpoints.py" for name in re.findall(calls, path.read_text())
    }


def test_every_crash_point_in_the_code_is_listed():
    assert points_in_the_code() <= set(POINTS)


def test_every_listed_crash_point_is_in_the_code():
    assert set(POINTS) - points_in_the_code() <= CALLED_BY_ENGINES


@pytest.mark.parametrize(("armed", "survived"), [("here", 0), ("here:1", 0), ("here:3", 2), ("elsewhere", 5)])
def test_process_dies_the_nth_time_it_reaches_its_crash_point(armed: str, survived: int):
    program = (
        "from holdfast.crashpoints import arm_from_settings, crashpoint\n"
        f"arm_from_settings({armed!r})\n"
        "for _ in range(5): crashpoint('here'); print('alive', flush=True)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert ended.stdout.count("alive") == survived
    assert ended.returncode == (0 if survived == 5 else -9)
