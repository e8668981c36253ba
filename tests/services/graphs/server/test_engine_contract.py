"""The contract of engines, for each engine in a process of its own: their modules cannot be imported together."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.services.graphs.server.engines.select import ENGINES, engine_named

DEFAULT = "ladybug"
CONTRACT = Path(__file__).with_name("engine_contract.py")
TESTS = Path(__file__).parents[3]


@pytest.mark.processes
@pytest.mark.parametrize("engine", [one if one == DEFAULT else pytest.param(one, marks=pytest.mark.more) for one in ENGINES])
def test_the_engine_keeps_the_contract(engine: str):
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not among the requirements; pip install {engine} to test its adapter")

    # Without the fixtures of other tests, whose modules take longer to import than these tests.
    options = ("--noconftest", "-p", "leaks", "-p", "no:xdist", "-x", "--tb=short")
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", str(CONTRACT), *options],
        env=os.environ | {"HOLDFAST_TEST_GRAPH_ENGINE": engine, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
    assert "skipped" not in ended.stdout


def test_an_engine_without_an_adapter_is_refused_with_the_list():
    with pytest.raises(UsageError, match="there are: ladybug, kuzu, ryugraph"):
        engine_named("neo4j")
    with pytest.raises(UsageError, match="falkordb is not supported"):
        engine_named("falkordb")
