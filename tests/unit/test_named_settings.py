"""Messages and docstrings name settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import AliasChoices

from holdfast.settings import Settings

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
NAMED = re.compile(r"\bHOLDFAST_[A-Z0-9]+(?:_[A-Z0-9]+)*\b(?!_?[…{*<])")


def known() -> set[str]:
    names = {f"HOLDFAST_{name.upper()}" for name in Settings.model_fields}
    for field in Settings.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            names |= {str(one) for one in field.validation_alias.choices}
    return names


def test_every_setting_that_the_code_names_is_one() -> None:
    named = {
        (name, path.relative_to(SOURCE).as_posix()) for path in SOURCE.rglob("*.py") for name in NAMED.findall(path.read_text())
    }

    assert len(named) > 50
    assert {(name, path) for name, path in named if name not in known()} == set()
