"""Errors on one line: of pydantic, httpx2 and Python itself. Those of psycopg are in tests/postgres/jobs/test_failures.py."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pydantic
import pytest

from holdfast.telemetry.error_text import error_line, error_text, one_line


class Order(pydantic.BaseModel):
    id: int


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def group() -> object:
    raise ExceptionGroup("two tasks", [ValueError("first"), ExceptionGroup("inner", [KeyError("second")])])


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: {}["x"], "KeyError: 'x'"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (
            lambda: Order(id="seven"),
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Order id Input should be",
        ),
        (lambda: compile("a b", "jobs.py", "exec"), "SyntaxError: invalid syntax"),
        (group, "ExceptionGroup: two tasks (2 sub-exceptions) ValueError: first KeyError: 'second'"),
        (
            lambda: httpx2.Response(404, request=httpx2.Request("GET", "https://x.test/a")).raise_for_status(),
            "httpx2.HTTPStatusError: Client error '404 Not Found' for url 'https://x.test/a'",
        ),
    ],
)
def test_error_is_formatted_on_one_line(call: Callable[[], object], line: str) -> None:
    told = error_line(raised_by(call))

    assert told.startswith(line)
    assert "\n" not in told
    assert "information" not in told


def test_error_without_a_message_shows_its_type() -> None:
    assert error_line(ValueError()) == "ValueError"
    assert one_line("") == one_line(None) == ""


def test_caret_line_is_used_if_there_is_no_other_text() -> None:
    assert one_line("   ^  ") == "^"


def test_a_long_line_is_cut() -> None:
    assert one_line("x" * 300) == "x" * 199 + "…"


def test_a_large_group_names_its_first_errors() -> None:
    text = error_text(ExceptionGroup("many", [ValueError(str(number)) for number in range(5)]))

    assert text.splitlines()[1:] == ["ValueError: 0", "ValueError: 1", "ValueError: 2", "and 2 more"]
