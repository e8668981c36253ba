"""Keep a figure that has a program of its own in results.json, beside those of `benchmarks.run`, which leaves it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results.json"


def keep(name: str, value: float, goal: float, better: Literal["higher", "lower"] = "higher", **more: Any) -> None:
    """Write it down; `more` says how it was measured."""
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    results["figures"][name] = {"value": round(value, 3), "goal": goal, "better": better, **more}
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
