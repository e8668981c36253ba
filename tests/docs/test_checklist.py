"""docs/checklist.md says what the tests say."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = DOCS.parents[1] / "shared" / "CHECKLIST.md"  # beside the repository, where the documents are at hand


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_checklist", DOCS / "make_checklist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ids_in(page: str) -> list[str]:
    return re.findall(r"^- (?:\[[ x]\] )?([A-Z]-\d\d) ", page, re.M)


def test_the_checklist_is_what_the_tests_make_it(maker: ModuleType):
    page = (DOCS / "checklist.md").read_text()

    assert maker.made(page) == page, "run: python docs/make_checklist.py"
    assert len(ids_in(page)) == len(set(ids_in(page))), "a line stands twice"


def test_a_line_that_stands_twice_is_kept_once(maker: ModuleType):
    assert ids_in(maker.made("- [ ] Z-98 a\n- [x] Z-99 b\n- Z-98 a\n")) == ["Z-98", "Z-99"]


def test_an_id_counts_where_a_test_says_it_of_itself_and_not_in_its_code(maker: ModuleType):
    source = '''
# Z-90
def test_it():
    """Z-91: it works."""
    assert code != "Z-92"  # Z-93
'''
    node = ast.parse(source).body[0]

    said = maker.said_by(node, source.splitlines())

    assert re.findall(r"Z-9\d", said) == ["Z-91", "Z-90", "Z-93"]


@pytest.mark.skipif(not SOURCE.exists(), reason="the source list is not beside the repository")
def test_every_line_of_the_source_list_is_there_and_no_other():
    assert sorted(ids_in((DOCS / "checklist.md").read_text())) == sorted(ids_in(SOURCE.read_text()))
