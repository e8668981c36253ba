"""How an attempt is handed to another process: the claim as JSON, and where the function of its kind is found again.

Called by: `isolated.py` on one side, `inside.py` on the other.
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

SCRIPT = "__holdfast_main__"  # the name under which a script is loaded that is `__main__` in its own process


def claim_to(claim: Claim) -> list[Any]:
    """A claim as JSON has it."""
    longest = None if claim.max_runtime is None else claim.max_runtime.total_seconds()
    return list(claim._replace(max_runtime=longest))  # type: ignore[arg-type]


def claim_from(values: list[Any]) -> Claim:
    claim = Claim._make(values)
    return claim if claim.max_runtime is None else claim._replace(max_runtime=timedelta(seconds=claim.max_runtime))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the function of a kind is found again by another process."""

    module: str
    file: str | None


def place_of(kind: Job[..., Any]) -> Place | None:
    """None if no other process can find it: it was made inside a function."""
    if "<locals>" in kind.function.__qualname__:
        return None
    module = kind.function.__module__
    if module != "__main__":
        return Place(module, None)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # started by `python -m`
        return Place(spec.name, None)
    file = getattr(main, "__file__", None)
    return None if file is None else Place(module, str(Path(file).absolute()))


def load(module: str, file: str | None, kind: str) -> Job[..., Any]:
    """The kind, from the module that registers it; a script is loaded under another name than `__main__`, like any import."""
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
