"""Import the modules whose kinds are to be run. Called by: the executor; no keeper ever imports a user's module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.worker.kinds import Job, registered


def kinds_of(modules: Sequence[str], only: Sequence[str] = ()) -> list[Job[..., Any]]:
    """The kinds that these modules register, and no others; of those only the named ones, if any are named."""
    before = registered()
    sys.path.insert(0, str(Path.cwd()))  # a script is looked for beside itself; people keep their modules where they are
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"cannot import {module}: {error}; is it installed, or in PYTHONPATH?") from None
        except Exception as error:  # foreign code: its traceback is worth more than our words
            raise UsageError(f"importing {module} failed with {type(error).__name__}: {error}") from error
    found = {name: kind for name, kind in registered().items() if name not in before}
    missing = sorted(set(only) - set(found))
    if missing:
        there = ", ".join(sorted(found)) or "none"
        raise UsageError(f"no kind {', '.join(missing)} in {', '.join(modules)}; there are: {there}")
    return [kind for name, kind in found.items() if not only or name in only]
