"""Fixtures for tests that start and kill real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from keepers import Start


@pytest.fixture
def start(tmp_path: Path, database: str) -> Iterator[Start]:
    """Starts keepers on the test's own database."""
    starting = Start(tmp_path, database)
    yield starting
    starting.end_all()


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the test itself, in autocommit."""
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn
