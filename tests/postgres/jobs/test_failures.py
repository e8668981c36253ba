"""Failed jobs are grouped by their error without its values, and shown with a readable line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pydantic
import pytest

from factories import end, hold
from holdfast import Fail
from holdfast.jobs.views.explain import explain
from holdfast.jobs.views.failures import get_failure, list_failures
from holdfast.jobs.views.read import get_job
from holdfast.telemetry.error_text import error_line, error_text

type_of_order = pydantic.create_model("Order", id=(int, ...), size=(int, 1))


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def sql(database: str, statement: str) -> BaseException:
    with psycopg.connect(database) as conn:
        return raised_by(lambda: conn.execute(statement))


def answer(status: int, path: str) -> BaseException:
    return raised_by(httpx2.Response(status, request=httpx2.Request("GET", f"https://x.test/{path}")).raise_for_status)


async def groups_of(conn: Any, *errors: BaseException | str) -> list[int]:
    """How many of these errors are in each group."""
    for error in errors:
        await end(conn, await hold(conn), Fail(error if isinstance(error, str) else error_text(error)))
    return sorted(one.jobs for one in await list_failures(conn))


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("SELECT nope FROM pg_class", 'psycopg.errors.UndefinedColumn: column "nope" does not exist'),
        ("SELEC 1", 'psycopg.errors.SyntaxError: syntax error at or near "SELEC"'),
        ("SELECT 1 FROM nope", 'psycopg.errors.UndefinedTable: relation "nope" does not exist'),
        ("SELECT 'a'::int", 'psycopg.errors.InvalidTextRepresentation: invalid input syntax for type integer: "a"'),
    ],
)
async def test_sql_error_shows_its_message_and_not_the_caret_line(conn: Any, database: str, statement: str, line: str) -> None:
    error = sql(database, statement)
    claim = await hold(conn)
    await end(conn, claim, Fail(error_text(error)))

    assert error_text(error).endswith("^")
    assert error_line(error) == line
    assert [one.error for one in await list_failures(conn)] == [line]
    assert line in await explain(conn, claim.id)


async def test_different_sql_errors_are_different_groups(conn: Any, database: str) -> None:
    statements = (
        "SELECT nope FROM pg_class",
        "SELECT other FROM pg_class",
        "SELECT 1 FROM nope",
        "SELEC 1",
        "SELECT 'a'::int",
        "INSERT INTO pg_class (nope) VALUES ('a')",
        "INSERT INTO pg_class (other) VALUES ('a')",
    )

    assert await groups_of(conn, *(sql(database, statement) for statement in statements)) == [1] * len(statements)


async def test_values_in_a_message_do_not_split_a_group(conn: Any, database: str) -> None:
    await conn.execute("CREATE TABLE public.orders (id int PRIMARY KEY, name text UNIQUE)")
    await conn.execute("INSERT INTO public.orders VALUES (1, 'ada'), (2, 'bob lee')")

    assert await groups_of(
        conn,
        *(sql(database, f"SELECT '{value}'::int") for value in ("a", "bc d")),
        *(sql(database, f"INSERT INTO public.orders VALUES ({id}, '{name}')") for id, name in ((3, "ada"), (44, "bob lee"))),
        *(raised_by(lambda key=key: {}[key]) for key in ("x", "y")),
        *(raised_by(lambda value=value: type_of_order(id=value)) for value in ("seven", "eight")),
        *(answer(404, path) for path in ("a", "b/c")),
        *(f"no row {uuid4()} at 0x7f{number}a" for number in range(2)),
    ) == [2, 2, 2, 2, 2, 2]


async def test_errors_with_different_text_are_different_groups(conn: Any) -> None:
    def group(*errors: Exception) -> BaseException:
        return ExceptionGroup("unhandled errors in a TaskGroup", list(errors))

    assert (
        await groups_of(
            conn,
            answer(404, "a"),
            answer(403, "a"),
            answer(503, "a"),
            raised_by(lambda: type_of_order(id="seven")),
            raised_by(lambda: type_of_order(id=1, size="seven")),
            group(ValueError("a")),
            group(KeyError("a")),
            "first line\nsecond line",
            "another first line\nsecond line",
        )
        == [1] * 9
    )


async def test_a_job_and_its_group_have_the_traceback_of_the_newest_attempt(conn: Any) -> None:
    def fails() -> None:
        raise KeyError("price")

    claim = await hold(conn, max_attempts=1)
    await end(conn, claim, raised_by(fails))
    plain = await hold(conn, kind="other")
    await end(conn, plain, Fail("no reason"))

    traceback = (await get_job(conn, claim.id)).traceback
    assert traceback is not None
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "in fails\n    raise KeyError" in traceback
    (listed,) = [one for one in await list_failures(conn) if one.newest == [claim.id]]
    assert listed.traceback is None
    assert (await get_failure(conn, listed.fingerprint)).traceback == traceback
    assert (await get_job(conn, plain.id)).traceback is None
