"""The pages of docs/reference are what the generator makes of the code and of a migrated database."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402

from holdfast.jobs.states import Move, State  # noqa: E402


def test_committed_pages_are_up_to_date(database: str) -> None:
    made = generate.pages(database)

    stale = {name: _difference(name, text) for name, text in made.items() if _committed(name) != text}
    assert not stale, "run `python docs/generate.py`:\n" + "\n".join(stale.values())
    assert {path.name for path in generate.FOLDER.iterdir()} == set(made), "a page that nobody makes"


def test_diagram_has_every_state_and_transition() -> None:
    drawn = generate.diagram()

    assert all(state.value in drawn for state in State)
    assert all(move.value in drawn for move in Move)


def _committed(name: str) -> str:
    path = generate.FOLDER / name
    return path.read_text() if path.exists() else ""


def _difference(name: str, text: str) -> str:
    changes = difflib.unified_diff(_committed(name).splitlines(), text.splitlines(), name, "made", lineterm="")
    return "\n".join(changes)
