"""Transfer an attempt to another process: the claim as JSON, and the location from which its function can be imported.

Called by: `parent.py` on one side, `child.py` on the other.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.jobs.model import Claim
from holdfast.worker.kinds import Job, kind_of

SCRIPT = "__holdfast_main__"  # the module name for a script that is `__main__` in the parent


def claim_to_json(claim: Claim) -> list[Any]:
    """A claim as JSON values."""
    longest = None if claim.max_runtime is None else claim.max_runtime.total_seconds()
    return list(claim._replace(max_runtime=longest))  # type: ignore[arg-type]


def claim_from_json(values: list[Any]) -> Claim:
    claim = Claim._make(values)
    return claim if claim.max_runtime is None else claim._replace(max_runtime=timedelta(seconds=claim.max_runtime))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class FunctionLocation:
    """Where another process finds the function of a kind."""

    module: str
    file: str | None


def location_of(kind: Job[..., Any]) -> FunctionLocation | None:
    """None if no other process can import it, because it is defined inside a function."""
    if "<locals>" in kind.function.__qualname__:
        return None
    module = kind.function.__module__
    if module != "__main__":
        return FunctionLocation(module, None)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # started by `python -m`
        return FunctionLocation(spec.name, None)
    file = getattr(main, "__file__", None)
    return None if file is None else FunctionLocation(module, str(Path(file).absolute()))


def load_kind(module: str, file: str | None, kind: str) -> Job[..., Any]:
    """Import the module that registers the kind. A script is loaded under another name than `__main__`, so its main part does
    not run."""
    if file is None:
        importlib.import_module(module)
    elif SCRIPT not in sys.modules:
        spec = importlib.util.spec_from_file_location(SCRIPT, file)
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        sys.modules[SCRIPT] = script
        spec.loader.exec_module(script)
    return kind_of(kind)
