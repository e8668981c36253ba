"""`holdfast graph shell`: what a prompt does with keys, statements and commands."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast.errors import UsageError
from holdfast.services.graphs.cli.rows import parameters_of, write_rows
from holdfast.services.graphs.cli.shell import Shell, converse, is_complete, prompt_for, statements, tables_of
from holdfast.toolkit.cli.output import Format, Output
from holdfast.toolkit.cli.verb import Session


class Requests:
    """Stands for the requests to a graph server."""

    seconds = 60.0

    def __init__(self) -> None:
        self.asked: list[str] = []

    def rows(self, cypher: str, parameters: Any, accept: str) -> bytes:
        self.asked.append(cypher)
        if accept == "text/csv":
            return b"n\n1\n"
        found = {"columns": ["n"], "column_types": ["INT64"], "row_count": 1, "execution_time_ms": 2, "truncated": False}
        return json.dumps(found | {"rows": [[1]]}).encode()

    def schema(self) -> dict[str, Any]:
        properties = [{"name": "id", "type": "INT64"}]
        edge = {"type": "KNOWS", "from": "P", "to": "P", "properties": [], "rows": 5}
        return {"nodes": [{"label": "P", "primary_key": "id", "properties": properties, "rows": 2}], "edges": [edge]}


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def shell(requests: Requests) -> Shell:
    return Shell(Session(Output(Format.TSV)), requests)  # type: ignore[arg-type]


def test_keys_at_the_prompt(shell: Shell, requests: Requests, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Several lines until a semicolon or an empty line, an error that does not end the shell, Ctrl-C, and Ctrl-D."""
    keys = "MATCH (n)\rRETURN n;\r" + "RETURN 2\r\r" + ".nothing\r" + "half\x03" + ".mode csv\r" + "RETURN 3;\r" + "\x04"
    history = tmp_path / "history"
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        converse(shell, prompt_for("g", history))

    assert requests.asked == ["MATCH (n)\nRETURN n;", "RETURN 2", "RETURN 3;"]
    shown = capsys.readouterr()
    assert "there is no command .nothing" in shown.err
    assert shown.out.endswith("n\n1\n")
    assert "RETURN n;" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_commands(shell: Shell, requests: Requests, capsys: pytest.CaptureFixture[str]):
    assert shell.handle(".schema")
    assert shell.handle(".help")
    assert shell.handle(".timeout 5s")
    assert not shell.handle(".quit")

    shown = capsys.readouterr()
    assert "node\tP\t\t2\tid INT64 (key)" in shown.out
    assert "P → P" in shown.out
    assert ".mode MODE" in shown.err
    assert requests.seconds == 5
    for wrong in (".mode x", ".parquet x", ".timeout x"):
        with pytest.raises(UsageError):
            shell.handle(wrong)


def test_statements_of_a_text():
    text = "MATCH (n)\nRETURN n;\n.schema\n\nRETURN 1\n\nRETURN 2"

    assert [one.strip() for one in statements(io.StringIO(text)) if one.strip()] == [
        "MATCH (n)\nRETURN n;",
        ".schema",
        "RETURN 1",
        "RETURN 2",
    ]
    assert is_complete("RETURN 1;")
    assert not is_complete("RETURN 1")


def test_parameters_and_files_of_a_query(requests: Requests, tmp_path: Path):
    assert parameters_of(["a=1", "b:=1", "c:=[1,2]"]) == {"a": "1", "b": 1, "c": [1, 2]}
    for wrong in ("a", "a:={", "1=2"):
        with pytest.raises(UsageError, match="--param"):
            parameters_of([wrong])
    with pytest.raises(UsageError, match=r"must end with one of: \.parquet"):
        write_rows(requests, "RETURN 1", {}, tmp_path / "x.xlsx")  # type: ignore[arg-type]
    assert "4 bytes" in write_rows(requests, "RETURN 1", {}, tmp_path / "x.csv")  # type: ignore[arg-type]


def test_tables_of_a_schema(requests: Requests):
    assert [row["name"] for row in tables_of(requests.schema())] == ["P", "KNOWS"]
