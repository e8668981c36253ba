"""Import the modules whose kinds and reconcilers are to run. Called by: the executor and the scheduler's program.

A keeper never imports a user's module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.distribution import install_hint
from holdfast.errors import UsageError
from holdfast.extras import missing_modules
from holdfast.telemetry.log import log
from holdfast.worker.kinds import Job, registered


def import_modules(modules: Sequence[str]) -> None:
    """Import these modules; the current folder is searched first, as with `python -m`."""
    sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        _refuse_file_name(module)
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"cannot import {module}: {error}; is it installed, or in PYTHONPATH?") from None
        except Exception as error:  # foreign code: its traceback says more than our message
            raise UsageError(f"importing {module} failed with {type(error).__name__}: {error}") from error


def kinds_of(modules: Sequence[str], only: Sequence[str] = ()) -> list[Job[..., Any]]:
    """The kinds that these modules register, and no others; of those only the named ones, if any are named."""
    before = registered()
    import_modules(modules)
    found = {name: kind for name, kind in registered().items() if name not in before}
    missing = sorted(set(only) - set(found))
    if missing:
        there = ", ".join(sorted(found)) or "none"
        raise UsageError(f"no kind {', '.join(missing)} in {', '.join(modules)}; there are: {there}")
    return _runnable([kind for name, kind in found.items() if not only or name in only])


def _runnable(kinds: list[Job[..., Any]]) -> list[Job[..., Any]]:
    """The kinds whose extra is installed. A worker that took the others would fail their jobs; another worker can run them."""
    extras = {kind.policy.extra for kind in kinds if kind.policy.extra is not None}
    without = {extra: modules for extra in sorted(extras) if (modules := missing_modules(extra))}
    left = {extra: [kind.kind for kind in kinds if kind.policy.extra == extra] for extra in without}
    for extra, modules in without.items():
        log.warning("kinds_skipped", kinds=left[extra], extra=extra, missing=modules, install=install_hint(extra))
    runnable = [kind for kind in kinds if kind.policy.extra not in without]
    if kinds and not runnable:
        raise UsageError(f"no kind can run here: {', '.join(kind.kind for kind in kinds)} need {install_hint(*without)}")
    return runnable


def _refuse_file_name(module: str) -> None:
    """`shop/jobs.py` is a file; its module is `shop.jobs`."""
    if module.endswith(".py") or "/" in module:
        name = module.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"{module!r} is a file name, and a module is imported by its name; use {name!r}")
