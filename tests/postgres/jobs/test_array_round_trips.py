"""Lists that we write as the text of arrays are what Postgres reads."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from factories import value
from holdfast.database import arrays

NASTY = ["", "NULL", "null", "a,b", '"', "\\", '\\"', "{", "}", "{a}", " a ", "\t\n\r", "é😀", "'", "%", "a\\,b", "\x01"]


async def test_text_is_returned_unchanged(conn: Any) -> None:
    texts = [*NASTY, None]

    assert await value(conn, "SELECT %s::text[]", arrays.of_texts(texts)) == texts


async def test_json_is_returned_unchanged(conn: Any) -> None:
    texts = ['{"a":"\\\\ \\" , {}"}', "null", None, "[]"]

    assert await value(conn, "SELECT %s::jsonb[]", arrays.of_texts(texts)) == [{"a": '\\ " , {}'}, None, None, []]


async def test_numbers_and_uuids_are_returned_unchanged(conn: Any) -> None:
    ids = [uuid4(), uuid4()]

    assert await value(conn, "SELECT %s::bigint[]", arrays.of_words([1, 2**60])) == [1, 2**60]
    assert await value(conn, "SELECT %s::uuid[]", arrays.of_words(ids)) == ids
    assert await value(conn, "SELECT %s::uuid[]", arrays.of_words([])) == []
