"""Every check of a value and of a data model: what is refused, and what is just accepted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from ingestion_factories import Back, entries_of
from pydantic import ValidationError

from factories import rows, value
from holdfast.errors import ClaimLost
from holdfast.jobs.model import AttemptId
from holdfast.services.ingestion.jobs import report
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models.definitions import Column, DataModel
from holdfast.services.ingestion.models.rules import mistakes_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.staging import errors
from holdfast.services.ingestion.staging.checks import LONGEST_KEY, Checked, literal

INTEGER, BOOLEAN = Column(name="n", type="integer"), Column(name="b", type="boolean")
DECIMAL, DAY = Column(name="d", type="decimal"), Column(name="day", type="date")


@pytest.mark.parametrize(
    ("column", "good", "bad", "reason"),
    [
        (INTEGER, ["7", "-07", "+7", "9" * 18], ["7.0", "x", "9" * 19, "1 2", "--1"], "is not an integer"),
        (BOOLEAN, ["TRUE", "n", "0", "Oui"], ["2", "maybe"], "is not a boolean; use true or false"),
        (DECIMAL, ["7", "-.5", "1e-3"], ["1,5", ".", "1e100", "NaN", "1" * 31], "is not a decimal number"),
        (DAY, ["2024-02-29"], ["2024-2-9", "0024-02-09", "2024-00-01", "2024-01-00"], "is not a date like YYYY-MM-DD"),
        (Column(name="n", type="integer", min=Decimal(3)), ["3"], ["2", "-5"], "must be at least 3"),
        (Column(name="n", type="integer", min=Decimal(-3)), ["-3"], ["-4"], "must be at least -3"),
        (Column(name="n", type="decimal", max=Decimal("1.5")), ["1.5"], ["1.51"], "must be at most 1.5"),
        (Column(name="t", allowed=("a", "it's")), ["it's"], ["A", ""], "must be one of: a, it's"),
    ],
)
async def test_a_value_is_refused_with_its_reason(
    conn: Any, column: Column, good: list[str], bad: list[str], reason: str
) -> None:
    found = await reasons(conn, Checked(column, "given.text"), [*good, *bad])

    assert found == [None] * len(good) + [reason] * len(bad)


async def test_a_decimal_comma_is_checked_with_its_groups(conn: Any) -> None:
    found = await reasons(conn, Checked(DECIMAL, "given.text", ","), ["1.234,5", "1234,5", "12.34,5", "1.5", "1,2,3"])

    assert found == [None, None, *["is not a decimal number with a decimal comma"] * 2, "is not a decimal number"]


async def test_a_value_of_a_key_fits_into_the_index(conn: Any) -> None:
    key = Checked(Column(name="t"), "given.text", is_key=True)

    found = await reasons(conn, key, ["x" * LONGEST_KEY, "ä" * (LONGEST_KEY // 2 + 1)])

    assert found == [None, f"is longer than {LONGEST_KEY} bytes"]


async def reasons(conn: Any, checked: Checked, texts: list[str]) -> list[str | None]:
    given = f"unnest(ARRAY[{', '.join(map(literal, texts))}]) WITH ORDINALITY AS given(text, at)"
    return [reason for (reason,) in await rows(conn, f"SELECT {checked.reason} FROM {given} ORDER BY at")]


async def test_a_row_of_factors_is_of_a_known_type_and_not_negative(back: Back, conn: Any) -> None:
    content = "det,emission_type,classification,value\nflights,co2,first,1\nships,co2,first,1\nflights,co2,economy,-1\n"

    run = await back.factors(content, module=None, det=None)

    assert run.result == "WARNING"
    assert await value(conn, "SELECT count(*) FROM holdfast.factors") == 1
    found = [(one.line, one.column) for one in await errors.listed(conn, run.job_id, limit=5)]
    assert found == [(3, "det"), (4, "value")]


async def test_factors_of_several_types_name_their_type(back: Back, conn: Any) -> None:
    run = await back.factors("emission_type,classification,value\nco2,first,1\n", module="travel", det=None)

    assert (run.result, await value(conn, "SELECT count(*) FROM holdfast.factors")) == ("ERROR", 0)
    assert "the file has no column 'det'" in str(run.status_message)


async def test_the_list_of_errors_is_limited_and_the_file_of_bad_rows_has_all(back: Back, conn: Any) -> None:
    await back.provision()
    back.here.most_errors = 2

    run = await back.ingest("trip_id,unit_id,date,cabin,distance\n" + "".join(f"T{n},U1,,first,1\n" for n in range(4)))

    assert [one.line for one in await errors.listed(conn, run.job_id, limit=50)] == [2, 3]
    assert run.outcome is not None
    async with back.here.store() as kept:
        assert len((await kept.get(run.outcome["bad_rows"])).splitlines()) == 1 + 4
    assert await entries_of(conn) == []


async def test_a_malformed_row_is_bad_although_its_values_would_be_good(back: Back, conn: Any) -> None:
    """Its text is kept in the first column, which accepts any text here, and no other column is required."""
    await back.provision("code,label\nU1,Physics\nU2,Chemistry,and more\n")

    assert await rows(conn, "SELECT code FROM holdfast.reference_values") == [("U1",)]
    ((job_id, result),) = await rows(conn, "SELECT job_id, result FROM holdfast.ingestions")
    assert result == "WARNING"
    assert [str(one) for one in await errors.listed(conn, job_id, limit=5)] == [
        "line 3: 'U2,Chemistry,and more' has 3 fields; the header has 2"
    ]


async def test_a_replaced_attempt_reports_nothing(back: Back, conn: Any) -> None:
    """The note is fenced: it is refused after another attempt has taken the job."""
    await back.provision()
    made = await back.dispatch("code\n", module="purchases", det="goods")
    claim = await back.harness._next()
    assert claim is not None
    replaced = claim._replace(attempt_id=AttemptId(str(uuid4())))

    with pytest.raises(ClaimLost):
        await report.note(conn, replaced, "late", {"rows_read": 1})

    assert await value(conn, "SELECT outcome FROM holdfast.ingestions WHERE job_id = %s", made.job_id) is None


@pytest.mark.parametrize(
    "wrong", [{"max_errors": -1}, {"max_error_percent": -0.1}, {"max_error_percent": 100.1}, {"max_error": 1}]
)
def test_an_error_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ErrorPolicy(**wrong)


COLUMN = {"name": "n", "type": "integer"}


@pytest.mark.parametrize(
    ("change", "pointer", "says"),
    [
        ({"columns": [{**COLUMN, "min": 2, "max": 1}]}, "/columns/0", "min 2 is larger than max 1"),
        ({"columns": [{**COLUMN, "max": 1, "type": "date"}]}, "/columns/0", "only numbers have min and max"),
        ({"columns": [{**COLUMN, "allowed": ["1"]}]}, "/columns/0", "only text has allowed values"),
        ({"columns": [{**COLUMN, "lookup": "units"}]}, "/columns/0", "only text is looked up"),
        ({"columns": [{**COLUMN, "format": "YYYY-MM-DD"}]}, "/columns/0", "format 'YYYY-MM-DD' is not supported"),
        ({"columns": [COLUMN], "classification": ["n"]}, "/classification", "has no effect without `amount`"),
        ({"columns": [COLUMN], "amount": "m"}, "/amount", "there is no column 'm'"),
        ({"columns": [COLUMN], "unit": "m"}, "/unit", "there is no column 'm'"),
        ({"columns": [COLUMN], "amount": "n", "classification": ["m"]}, "/classification", "there is no column 'm'"),
    ],
)
def test_a_mistake_in_a_type_is_named(change: dict[str, Any], pointer: str, says: str) -> None:
    definition = {"name": "m", "modules": [{"name": "a", "data_entry_types": [{"name": "t"} | change]}]}

    found = mistakes(definition)

    assert [(one.pointer, says in one.message) for one in found] == [(f"/modules/0/data_entry_types/0{pointer}", True)]


def test_names_and_numbers_of_modules_and_types_are_unique() -> None:
    definition = read_model(EXAMPLE)
    first, second = definition["modules"][:2]
    second |= {"name": first["name"], "id": first["id"]}
    flights, trains = first["data_entry_types"]
    trains |= {"name": flights["name"], "id": flights["id"]}

    found = [one.pointer for one in mistakes(definition)]

    types = "/modules/0/data_entry_types/1"
    assert found == ["/modules/1/name", "/modules/1/id", f"{types}/name", f"{types}/id"]


def mistakes(definition: dict[str, Any]) -> list[Any]:
    """Every mistake of a definition whose fields have the right types."""
    return [*mistakes_of(DataModel.model_validate(definition))]
