"""Links between pages lead somewhere, headings included; every file on the map is there; no page knows one machine only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from blocks import blocks, pages  # noqa: E402

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
MAP = ROOT / "docs/map.md"
REACHABLE_FROM = ROOT / "docs/index.md"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    broken = [link for link in _links(page) if not _leads_somewhere(page, link)]

    assert not broken


def test_every_code_block_is_closed_and_has_a_language() -> None:
    found = [block for page in (ROOT / "docs").rglob("*.md") for block in blocks(page)]

    assert len(found) > 100
    assert [str(block) for block in found if not block.language] == []


def test_every_page_is_linked_from_the_index() -> None:
    seen: set[Path] = set()
    ahead = [REACHABLE_FROM]
    while ahead:
        page = ahead.pop()
        if page not in seen and page.exists() and page.suffix == ".md":
            seen.add(page)
            ahead += [(page.parent / link.split("#")[0]).resolve() for link in _links(page) if "://" not in link]

    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page not in seen} == set()


def test_every_file_on_the_map_exists() -> None:
    named = re.findall(r"`([\w./-]+\.(?:py|md|tla))`", MAP.read_text())

    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_file_of_the_kernel_is_on_the_map() -> None:
    kernel = {f"src/holdfast/jobs/{path.name}" for path in (ROOT / "src/holdfast/jobs").glob("[a-z]*.py")}

    assert {name for name in kernel if f"`{name}`" not in MAP.read_text()} == set()


def test_no_page_names_a_machine_path() -> None:
    own = re.compile(r"/(?:work|home|root|Users|tmp)/")

    assert [str(page.relative_to(ROOT)) for page in pages() if own.search(page.read_text())] == []


def _links(page: Path) -> Iterator[str]:
    """Links in the text, not in code."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text()))
    return (found[1] for found in LINK.finditer(text))


def _leads_somewhere(page: Path, link: str) -> bool:
    if "://" in link or link.startswith("mailto:"):
        return True
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not heading or heading in set(_headings(target))


def _headings(page: Path) -> Iterator[str]:
    """The anchors that a heading gets: small letters, no punctuation, hyphens for spaces."""
    for line in FENCED.sub("", page.read_text()).splitlines():
        if line.startswith("#"):
            words = line.lstrip("#").strip().lower()
            yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
