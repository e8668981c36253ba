"""tests/checklist.md is generated from the docstrings and comments of the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from make_checklist import PAGE, claims_of, generated

SOURCE = Path(__file__).parents[3] / "shared" / "CHECKLIST.md"  # beside the repository, where the documents are at hand


def ids_in(page: str) -> list[str]:
    return re.findall(r"^- (?:\[[ x]\] )?([A-Z]-\d\d) ", page, re.M)


def test_the_checklist_is_up_to_date():
    page = PAGE.read_text()

    assert generated(page) == page, "run: python tests/make_checklist.py"
    assert len(ids_in(page)) == len(set(ids_in(page))), "duplicate line"


def test_a_duplicate_line_is_kept_once():
    assert ids_in(generated("- [ ] Z-98 a\n- [x] Z-99 b\n- Z-98 a\n")) == ["Z-98", "Z-99"]


def test_an_id_counts_in_docstring_and_comments_but_not_in_code():
    source = '''
# Z-90
def test_it():
    """Z-91: it works."""
    assert code != "Z-92"  # Z-93
'''
    node = ast.parse(source).body[0]

    claimed = claims_of(node, source.splitlines())

    assert re.findall(r"Z-9\d", claimed) == ["Z-91", "Z-90", "Z-93"]


@pytest.mark.skipif(not SOURCE.exists(), reason="the source list is not beside the repository")
def test_the_page_has_exactly_the_lines_of_the_source_list():
    assert sorted(ids_in(PAGE.read_text())) == sorted(ids_in(SOURCE.read_text()))
