"""docs/checklist.md says what the tests say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_checklist_is_what_the_tests_make_it():
    spec = importlib.util.spec_from_file_location("make_checklist", DOCS / "make_checklist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "checklist.md").read_text()

    assert module.made(page) == page, "run: python docs/make_checklist.py"
