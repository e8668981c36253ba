"""The refusal of a second algorithm on a graph."""

from __future__ import annotations

from typing import Any

from holdfast.errors import LockBusy
from holdfast.services.graphs.api.algorithms import _held


async def test_a_holder_that_was_removed_meanwhile_is_not_named(conn: Any) -> None:
    refusal = await _held(conn, 7, LockBusy("graph-algorithm:7", 4711))

    assert refusal.detail == "an algorithm ran on graph instance 7 and has just ended; try again"
