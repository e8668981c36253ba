"""Write docs/checklist.md: every feature that the documents name, and for those that are done the test that shows it.

A test shows a line by naming its id (`K-08`) in its docstring or in a comment; an id in its code is no claim. The features are
read from the page as it stands, each once, so that the page can be made again from the tests alone:
`python docs/make_checklist.py`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "checklist.md"
LINE = re.compile(r"^- (?:\[[ x]\] )?(?P<id>[A-Z]-\d\d) (?P<feature>.*?)(?: — .*)?$")
MOST = 3  # tests named per line; there are often more


def tests_by_id() -> dict[str, list[str]]:
    """Which tests say that they show which line."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                text = said_by(node, lines)
                for line_id in sorted(set(re.findall(r"\b[A-Z]-\d\d\b", text))):
                    found[line_id].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def said_by(test: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    """What a test says of itself: its docstring, and the comments in it and right above it."""
    around = lines[max(0, test.lineno - 3) : test.end_lineno]
    comments = [line.partition("#")[2] for line in around if re.search(r"(^|\s)#\s", line)]
    return "\n".join([ast.get_docstring(test) or "", *comments])


def made(page: str) -> str:
    """The page with every line ticked that a test shows, and no line twice."""
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
    PAGE.write_text(made(PAGE.read_text()))
