"""Sessions of the open database, its replacement, and the memory that results share. Without an engine: these are our rules."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.services.graphs.server.graph import USES, Budget, Busy, Graph, OpenDatabase


class Session:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def close(self) -> None:
        self._log.append("session closed")


class Database:
    """Records what happens to it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def session(self, threads: int = 0) -> Any:
        self.log.append("session opened")
        return Session(self.log)

    def close(self) -> None:
        self.log.append("closed")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "graph-1"
    made.touch()
    return made


def test_a_session_is_used_again_and_replaced_after_many_uses(file: Path):
    """ladybug keeps every statement with parameters that a session has run; a session that stays would grow for ever."""
    database = Database()
    opened = OpenDatabase(database, file, {})

    for _ in range(USES + 1):
        borrowed = opened.borrow()
        assert borrowed is not None
        borrowed.give_back()

    assert database.log == ["session opened", "session closed", "session opened"]


def test_a_replaced_database_stays_until_its_last_user_has_ended(file: Path, tmp_path: Path):
    old, new = Database(), Database()
    graph = Graph(None, OpenDatabase(old, file, {}), pool_bytes=100, sessions=1, waiting=0)  # type: ignore[arg-type]
    reading = graph.borrow()

    graph.replace(OpenDatabase(new, tmp_path / "graph-2", {}))

    assert "closed" not in old.log
    assert file.exists()
    assert graph.borrow().owner is graph.current, "new queries use the new one"
    reading.give_back()
    assert old.log[-2:] == ["session closed", "closed"]
    assert not file.exists()


async def test_more_queries_than_threads_and_places_are_refused(file: Path):
    graph = Graph(None, OpenDatabase(Database(), file, {}), pool_bytes=100, sessions=1, waiting=0)  # type: ignore[arg-type]
    gate = threading.Event()
    running = graph._threads.submit(gate.wait)
    graph._queries.add(running)

    with pytest.raises(Busy):
        await graph.run(lambda: None)

    gate.set()
    graph._queries.discard(running)
    graph.close()


MIB = 1024 * 1024


def test_results_share_a_budget():
    budget = Budget(100 * MIB)

    first = budget.take(60 * MIB, time.monotonic() + 60)
    with pytest.raises(Busy):
        budget.take(60 * MIB, time.monotonic())
    waited: list[int] = []
    thread = threading.Thread(target=lambda: waited.append(budget.take(60 * MIB, time.monotonic() + 60)))
    thread.start()
    budget.give_back(first)
    thread.join()

    assert waited == [60 * MIB]


def test_a_large_result_gets_the_whole_budget_and_small_ones_do_not_wait_for_it():
    budget = Budget(100 * MIB)

    taken = budget.take(10_000 * MIB, time.monotonic() + 60)

    assert taken == 100 * MIB
    assert budget.take(MIB, time.monotonic()) == 0
    with pytest.raises(Busy):
        budget.take(2 * MIB, time.monotonic())
    budget.give_back(taken)
    assert budget.take(2 * MIB, time.monotonic() + 60) == 2 * MIB
