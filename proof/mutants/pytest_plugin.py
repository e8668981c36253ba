"""A plugin for pytest: `-p proof.mutants.pytest_plugin` with `HOLDFAST_MUTANT=name` runs the suite on a mutated kernel.

It prints one line of JSON for each failure, which says whether the failure counts as catching the mutant (`viability.py`).
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

VARIABLE = "HOLDFAST_MUTANT"
MARK = "MUTANT "  # each line begins with it
# They compare the schema with another copy of it or with a list of its constraints, so they fail for every mutant of the
# schema, whether the kernel needs what is missing or not.
LEFT_OUT = ("test_migrations.py", "test_states.py")

_failures: list[str] = []


def pytest_configure() -> None:
    """Before any test is collected, so that no module has a copy of what is changed."""
    name = os.environ.get(VARIABLE)
    if name:
        from proof.mutants.run import by_name  # not at the top: the kernel must be imported by pytest's own rules

        by_name(name).apply()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the schema itself."""
    left_out = [item for item in items if item.path.name in LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_exception_interact(node: Any, call: pytest.CallInfo[Any]) -> None:
    """Note each failure with what raised it."""
    from proof.mutants.viability import report_of

    assert call.excinfo is not None
    error = call.excinfo.value
    first = str(error).strip().split("\n")[0]
    sentence = f"{node.nodeid}: {type(error).__name__}: {first}"[:300]
    _failures.append(json.dumps({"report": report_of(error), "sentence": sentence, "where": node.nodeid}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After everything else, one line each."""
    for line in _failures:
        terminalreporter.write_line(f"{MARK}{line}")
