"""A service with one of each part works with nothing outside its folder but its line in the catalog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def used(fresh_database: str) -> dict[str, Any]:
    """What `use_every_part.py` found on a database of its own."""
    environment = os.environ | {"PYTHONPATH": str(HERE), "HOLDFAST_GREETING_WORD": "Hi"}
    environment["HOLDFAST_DATABASE_URL"] = fresh_database
    words = [sys.executable, str(HERE / "use_every_part.py"), fresh_database]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_every_part_of_a_service_works_from_its_folder_alone(used: dict[str, Any]) -> None:
    assert used["loaded"] == [], "the catalog loads descriptions and nothing heavy"
    assert used["revision"] == "9001"
    assert used["names"] == [True, True, True]
    assert used["settings"] == ["Hi", True, "snapshots"], "one class has the fields of all services"
    assert used["created"] == {"name": "Ada", "text": "Hi, Ada!"}
    assert (used["problem"]["code"], used["problem"]["title"]) == ("ALREADY_GREETED", "Already greeted")
    assert used["config"] == 20
    assert (used["job"], used["followed"], used["reserved"]) == ("completed", "completed", "RESERVED_KIND")
    assert 'data: {"text":"Hi, Bob!"}' in used["stream"]
    assert "<li>Hi, Ada! <a" in used["page"]
    assert "/console/act/greeting.create?name=Bob" in used["page"]
    assert ">Toys</h2>" in used["page"]
    assert used["metric"]
    assert used["client"] == ["Ada", "Bob"]
    assert used["loops"] == ["greetings_count"]
    assert [one["name"] for one in used["greeting"]] == ["Ada", "Bob"]
    assert used["help"]
    assert "greetings" in used["doctor"]
