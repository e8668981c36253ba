"""Lists as the text of Postgres arrays; that Postgres reads the same back is shown in test_array_round_trips.py."""

from __future__ import annotations

from holdfast.database import arrays


def test_words_are_joined_by_commas() -> None:
    assert arrays.of_words([1, "b", 3]) == "{1,b,3}"


def test_no_words_are_an_empty_array() -> None:
    assert arrays.of_words([]) == "{}"
    assert arrays.of_texts([]) == "{}"


def test_texts_are_quoted_and_escaped() -> None:
    assert arrays.of_texts(['a,"b"', "c\\d", "{e}"]) == '{"a,\\"b\\"","c\\\\d","{e}"}'


def test_none_is_null_and_the_text_null_is_not() -> None:
    assert arrays.of_texts([None, "NULL", ""]) == '{NULL,"NULL",""}'


def test_generator_is_accepted() -> None:
    assert arrays.of_words(number for number in (1, 2)) == "{1,2}"
