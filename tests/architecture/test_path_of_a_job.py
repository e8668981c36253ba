"""`docs/map.md` lists the files that one plain job passes through. The list is short, and the calls in it exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src/holdfast"
STEP = re.compile(r"^\d+\. `src/holdfast/(\S+\.py)`: (.*)$", re.MULTILINE)

# Who calls what on the way. The database lies between enqueue and claim, a queue between the lanes and an attempt.
CALLS = (
    ("worker/kinds.py", "enqueue"),
    ("worker/claiming.py", "claim"),
    ("worker/transports/direct.py", "claim_plain"),
    ("worker/claiming.py", "hand_out"),
    ("worker/attempt.py", "take"),
    ("worker/attempt.py", "complete"),
    ("worker/transports/direct.py", "complete_plain"),
)


def steps() -> list[tuple[str, list[str]]]:
    section = (ROOT / "docs/map.md").read_text().split("## The path of one job")[1]
    return [(path, re.findall(r"`(\w+)`", says)) for path, says in STEP.findall(section)]


def nodes(file: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse((SOURCE / file).read_text())))


def called_in(file: str) -> set[str]:
    functions = [node.func for node in nodes(file) if isinstance(node, ast.Call)]
    names = {one.id for one in functions if isinstance(one, ast.Name)}
    return names | {one.attr for one in functions if isinstance(one, ast.Attribute)}


def defined_in(file: str) -> set[str]:
    return {node.name for node in nodes(file) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_a_plain_job_passes_through_at_most_eight_files() -> None:
    files = [file for file, _ in steps()]

    assert 5 <= len(files) <= 8
    assert [file for file in files if not (SOURCE / file).is_file()] == []


def test_every_step_of_the_path_is_a_function_of_its_file() -> None:
    assert [(file, name) for file, names in steps() for name in names if name not in defined_in(file)] == []


def test_each_file_of_the_path_calls_the_next() -> None:
    assert [(file, name) for file, name in CALLS if name not in called_in(file)] == []
    assert {file for file, _ in CALLS} <= {file for file, _ in steps()}
