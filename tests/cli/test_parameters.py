"""Which values of options and arguments are used as they are, and which ones Typer validates."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from holdfast.cli.parameters import AsGiven, is_plain, validate_when_needed


class Colour(Enum):
    RED = "red"


app = typer.Typer()


@app.command()
def paint(
    what: Annotated[list[str], typer.Argument()],
    colour: Annotated[Colour, typer.Option()] = Colour.RED,
    times: Annotated[int, typer.Option(min=1)] = 1,
    folder: Annotated[Path | None, typer.Option()] = None,
    note: Annotated[str | None, typer.Option()] = None,
    tag: Annotated[list[str] | None, typer.Option()] = None,
    dry: Annotated[bool, typer.Option()] = False,
) -> dict[str, Any]:
    return {"what": what, "colour": colour, "times": times, "folder": folder, "note": note, "tag": tag, "dry": dry}


def ran(*words: str, quickly: bool) -> tuple[Any, list[str]]:
    """The arguments of the function, and the parameters for which Typer has made a validator."""
    command: Any = get_command(app)
    context = typer.Context(command)
    if quickly:
        validate_when_needed(command, context)
    given = command.main(list(words), standalone_mode=False)
    return given, [one.name for one in command.params if not isinstance(one._runtime_param, AsGiven | None)]


@pytest.mark.parametrize(
    ("words", "validated"),
    [
        (["a"], []),
        (["a", "b", "--note", "7", "--tag", "x", "--tag", "y", "--dry"], []),
        (["a", "--times", "2"], ["times"]),
        (["a", "--colour", "red", "--folder", "."], ["colour", "folder"]),
    ],
)
def test_the_function_gets_the_same_and_only_values_that_need_it_are_validated(words: list[str], validated: list[str]):
    given, made = ran(*words, quickly=True)

    assert given == ran(*words, quickly=False)[0]
    assert made == validated


@pytest.mark.parametrize("words", ["a --times 0", "a --times x", "a --colour blue", "", "a --nothing"])
def test_what_is_not_valid_is_refused_with_the_same_message(words: str):
    messages = []
    for quickly in (True, False):
        with pytest.raises(Exception, match=".+") as refused:
            ran(*words.split(), quickly=quickly)
        messages.append((type(refused.value), str(refused.value)))

    assert messages[0] == messages[1]


def test_only_values_of_simple_types_are_used_as_they_are():
    assert [is_plain(one) for one in (str, int, float, Colour, Path, bool, list[str], str | None)] == [True] * 4 + [False] * 4
