"""The documentation as a site: `make docs`. The pages are the Markdown files of `docs/`, unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.distribution import VERSION

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    "Tutorial": "tutorial",
    "How-to guides": "howto",
    "Explanation": "explanation",
    "Reference": "reference",
    "Runbooks": "runbooks",
    "Alerts": "runbooks/alerts",
    "Decisions": "decisions",
}

project = "Holdfast"
version = release = VERSION
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["site"]
html_theme = "furo"
html_title = "Holdfast"
html_extra_path: list[str] = []
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # output of programs, and blocks with several languages


def setup(app: Any) -> None:
    """Change the text of pages as they are read; the files are also read without a site."""
    app.connect("source-read", _read)


def _read(_: Any, name: str, source: list[str]) -> None:
    page = ROOT / "docs" / f"{name}.md"
    source[0] = re.sub(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)", lambda found: _link(page, found), source[0])
    if name == root_doc:
        source[0] += "".join(_contents(title, folder) for title, folder in SECTIONS.items())
        source[0] += _contents("Project", ".")


def _link(page: Path, found: re.Match[str]) -> str:
    """A file of the repository that is no page, such as ../CHANGELOG.md, is named instead of linked."""
    target = (page.parent / found[2]).resolve()
    return found[0] if target.is_relative_to(ROOT / "docs") else f"{found[1]} (`{target.relative_to(ROOT)}`)"


def _contents(title: str, folder: str) -> str:
    pages = sorted(path for path in (ROOT / "docs" / folder).glob("*.md") if path.stem != root_doc)
    listed = "\n".join(str(path.relative_to(ROOT / "docs").with_suffix("")) for path in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"
