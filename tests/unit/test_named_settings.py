"""Messages and docstrings name settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast.catalog  # noqa: F401 - all services
from holdfast.services.graphs.server.settings import GraphServerSettings
from holdfast.settings import settings_class

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
NAMED = re.compile(r"\bHOLDFAST_[A-Z0-9]+(?:_[A-Z0-9]+)*\b(?!_?[…{*<])")


def test_every_setting_named_in_code_exists() -> None:
    every = {**settings_class().model_fields, **GraphServerSettings.model_fields}  # a graph server has settings of its own
    known = {f"HOLDFAST_{name.upper()}" for name in every}
    named = {
        (name, path.relative_to(SOURCE).as_posix()) for path in SOURCE.rglob("*.py") for name in NAMED.findall(path.read_text())
    }

    assert len(named) > 50
    assert {(name, path) for name, path in named if name not in known} == set()
