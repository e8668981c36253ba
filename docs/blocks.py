"""The code blocks of a page, for the tests that run them. Called by: tests/docs.

The words after the language say what a block is:

    ```python                 a step of a how-to: run in order, in one namespace, `await` allowed at the top
    ```python file=jobs.py    a file of the tutorial
    ```sh run                 a command of the tutorial
    ```text output            what the command above it prints; `…` stands for anything
    ```python no-run          only to be looked at

A renderer reads the language and ignores the rest.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`]*)$")
DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, and where its first line stands."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def has(self, word: str) -> bool:
        return word in self.words

    def value(self, name: str) -> str | None:
        """`jobs.py` for `file=jobs.py`."""
        return next((word.removeprefix(f"{name}=") for word in self.words if word.startswith(f"{name}=")), None)


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, in order. An open fence at the end of the page is an error."""
    opened: tuple[int, str, list[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened = (number, fence["indent"] + fence["ticks"], fence["info"].split())
                lines = []
        elif fence and not fence["info"].strip() and fence["indent"] + fence["ticks"] == opened[1]:
            began, mark, info = opened
            indent = len(mark) - len(mark.lstrip())
            text = "".join(f"{line[indent:]}\n" for line in lines)
            yield Block(page, began + 1, info[0] if info else "", tuple(info[1:]), text)
            opened = None
        else:
            lines.append(line)
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: this block is never closed")


async def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a Python block as if it stood in an interactive session; a traceback names the page and its line."""
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    ended = eval(code, namespace)  # noqa: S307 - our own pages
    if inspect.isawaitable(ended):
        await ended


def as_script(page: Path) -> tuple[str, list[tuple[Block, Block]]]:
    """The page as one bash script, and each command block with the output that the page says it has.

    Before a command runs, the script prints a line with its place, so that outputs can be told apart.
    """
    script = ["set -eu"]
    expected: list[tuple[Block, Block]] = []
    command: Block | None = None
    for block in blocks(page):
        if (name := block.value("file")) is not None:
            script += [f"cat > {name} <<'END-OF-FILE'", block.text.rstrip("\n"), "END-OF-FILE"]
        elif block.language == "sh" and block.has("run"):
            script += [f"echo '{marker(block)}'", block.text.rstrip("\n")]
            command = block
        elif block.has("output"):
            if command is None:
                raise ValueError(f"{block}: output without a command before it")
            expected.append((command, block))
    return "\n".join([*script, ""]), expected


def play(page: Path, folder: Path, database: str, *, patience: float = 180) -> str:
    """Run the page as a script in this folder, in a process group of its own that ends with it; what it prints."""
    script, _ = as_script(page)
    (folder / "page.sh").write_text(script)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(folder),
        "HOLDFAST_DATABASE_URL": database,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUNBUFFERED": "1",
    }
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(["bash", "page.sh"], cwd=folder, env=environment, text=True, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=patience)
        ended = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired as late:
        out, err = (said.decode() if isinstance(said, bytes) else said or "" for said in (late.stdout, late.stderr))
        ended = f"did not end within {patience} s"
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing was left
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if process.returncode != 0:
        logs = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(folder.glob("*.log")))
        raise AssertionError(f"{page.name} {ended}\n{out}\n{err}\n{logs}")
    return out


def check_outputs(page: Path, said: str) -> None:
    """Compare what the commands printed with what the page says they print."""
    found = outputs(page, said)
    for command, output in as_script(page)[1]:
        printed = found[command.line]
        if not is_like(output.text, printed):
            raise AssertionError(f"{output} says:\n{output.text}\nbut it was:\n{printed}")


def marker(block: Block) -> str:
    return f"== {block.page.name}:{block.line}"


def outputs(page: Path, text: str) -> dict[int, str]:
    """What each command block printed, by its line."""
    parts = re.split(rf"^== {re.escape(page.name)}:(\d+)\n", text, flags=re.MULTILINE)
    return {int(line): said for line, said in zip(parts[1::2], parts[2::2], strict=True)}


def is_like(expected: str, found: str) -> bool:
    """Whether every line of the page stands in the output, in its order; `…` stands for anything within a line."""
    wanted = [re.compile(".*?".join(map(re.escape, line.split("…")))) for line in expected.splitlines() if line.strip()]
    lines = iter(found.splitlines())
    return all(any(pattern.fullmatch(line) for line in lines) for pattern in wanted)


def pages() -> list[Path]:
    """Every page of the documentation, and the ones that stand beside it."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return sorted(DOCS.rglob("*.md")) + [page for page in beside if page.exists()]
