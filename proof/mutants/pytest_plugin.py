"""A plugin for pytest: `-p proof.mutants.pytest_plugin` with `HOLDFAST_MUTANT=name` runs the suite on a mutated kernel.

It prints one line for each failure, which says whether the failure counts as catching the mutant (`viability.py`).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

VARIABLE = "HOLDFAST_MUTANT"
CAUGHT, BROKEN = "MUTANT CAUGHT", "MUTANT BROKEN"

_failures: list[str] = []


def pytest_configure() -> None:
    """Before any test is collected, so that no module has a copy of what is changed."""
    name = os.environ.get(VARIABLE)
    if name:
        from proof.mutants.run import by_name  # not at the top: the kernel must be imported by pytest's own rules

        by_name(name).apply()


def pytest_exception_interact(node: Any, call: pytest.CallInfo[Any]) -> None:
    """Note each failure with what raised it."""
    from proof.mutants.viability import is_broken

    assert call.excinfo is not None
    error = call.excinfo.value
    first = str(error).strip().split("\n")[0]
    _failures.append(f"{BROKEN if is_broken(error) else CAUGHT} {node.nodeid}: {type(error).__name__}: {first}"[:300])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After everything else, one line each."""
    for line in _failures:
        terminalreporter.write_line(line)
