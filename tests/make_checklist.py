"""Generate tests/checklist.md: the required features, each with the tests that show it.

    python tests/make_checklist.py

A test claims a line by its id (`K-08`) in its docstring or in a comment; an id in the test's code does not count. The features
themselves are read from the existing page.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "checklist.md"
LINE = re.compile(r"^- (?:\[[ x]\] )?(?P<id>[A-Z]-\d\d) (?P<feature>.*?)(?: — .*)?$")
MOST = 3  # tests listed for each line


@cache
def tests_by_id() -> dict[str, list[str]]:
    """The tests that claim each line."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                text = claims_of(node, lines)
                for line_id in sorted(set(re.findall(r"\b[A-Z]-\d\d\b", text))):
                    found[line_id].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def claims_of(test: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    """The text in which a test may claim lines: its docstring, the comments in it and directly above it."""
    around = lines[max(0, test.lineno - 3) : test.end_lineno]
    comments = [line.partition("#")[2] for line in around if re.search(r"(^|\s)#\s", line)]
    return "\n".join([ast.get_docstring(test) or "", *comments])


def generated(page: str) -> str:
    """The page with a tick on every line that a test claims, and no line twice."""
    shown = tests_by_id()
    out: list[str] = []
    seen: set[str] = set()
    for line in page.splitlines():
        match = LINE.match(line)
        if match is None:
            out.append(line)
            continue
        if match["id"] in seen:
            continue
        seen.add(match["id"])
        tests = shown.get(match["id"], [])
        named = ", ".join(f"`{test}`" for test in tests[:MOST])
        more = f" and {len(tests) - MOST} more" if len(tests) > MOST else ""
        out.append(f"- [{'x' if tests else ' '}] {match['id']} {match['feature']}{f' — {named}{more}' if tests else ''}")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
