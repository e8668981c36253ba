"""A plugin for pytest: `-p proof.mutation_plugin` with `HOLDFAST_MUTANT=name` runs the suite on a mutated kernel."""

from __future__ import annotations

import os

VARIABLE = "HOLDFAST_MUTANT"


def pytest_configure() -> None:
    """Before any test is collected, so that nothing has a copy of what is changed."""
    name = os.environ.get(VARIABLE)
    if name:
        from proof.mutants import by_name  # not at the top: the kernel must be imported by pytest's own rules

        by_name(name).apply()
