"""`%%cypher` in a real IPython shell."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from holdfast.errors import UsageError
from holdfast.services.graphs.client import Graph, QueryResult
from holdfast.services.graphs.client.magic import options_of


class Recorded(Graph):
    """A graph that records its queries."""

    def query(self, cypher: str, parameters: Any = None, /, **options: Any) -> QueryResult:
        ASKED.append((cypher, parameters, options))
        return QueryResult(pa.table({"n": [1]}))


ASKED: list[tuple[str, Any, Any]] = []


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell replaces it; processes that start need it
    made = InteractiveShell(ipython_dir=str(tmp_path), config=Config({"HistoryManager": {"enabled": False}}))
    ASKED.clear()
    made.run_line_magic("load_ext", "holdfast.services.graphs.client.magic")
    yield made
    made.atexit_operations()
    atexit.unregister(made.atexit_operations)


def graph() -> Graph:
    empty: dict[str, Any] = dict.fromkeys(Graph.__dataclass_fields__)
    return Recorded(**empty)


def test_a_cell_runs_with_its_parameters_and_variables(shell: InteractiveShell):
    shell.user_ns |= {"g": graph(), "age": 30}
    shell.run_line_magic("cypher_use", "g")

    shell.run_cell_magic(
        "cypher", "name=Ada ids=[1,2] --limit 5 --out found", "MATCH (p) WHERE p.age > $age RETURN $name, $ids"
    )

    cypher, parameters, options = ASKED[0]
    assert cypher.startswith("MATCH")
    assert parameters == {"name": "Ada", "ids": [1, 2], "age": 30}
    assert options == {"max_rows": 5}
    assert isinstance(shell.user_ns["found"], QueryResult)


def test_one_line_returns_its_result(shell: InteractiveShell):
    shell.user_ns["g"] = graph()
    shell.run_line_magic("cypher_use", "g")

    assert isinstance(shell.run_line_magic("cypher", "RETURN 1"), QueryResult)


def test_without_a_graph_it_says_what_to_do(shell: InteractiveShell):
    with pytest.raises(UsageError, match="%cypher_use"):
        shell.run_cell_magic("cypher", "", "RETURN 1")
    shell.user_ns["x"] = 1
    with pytest.raises(UsageError, match="needs a graph"):
        shell.run_line_magic("cypher_use", "x")


@pytest.mark.parametrize("line", ["--limit x", "--out", "what", "1=2"])
def test_wrong_options_are_named(line: str):
    with pytest.raises(UsageError):
        options_of(line)
