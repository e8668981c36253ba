"""Which values a direct change takes without pydantic: none that pydantic refuses, and each as pydantic returns it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from holdfast.api.bodies import JobNumber, Reason, Rule, Small
from holdfast.api.controls import DrainAsked, Kind, KindAsked
from holdfast.api.job_changes import CancelAsked
from holdfast.cli import certain
from holdfast.cli.reads.values import NotHandled

NOBODY = "00000000-0000-0000-0000-00000000000a"
CERTAIN = [
    *((JobNumber, "7"), (JobNumber, 7), (JobNumber, "007"), (Small, 1000), (Kind, "k"), (Kind, "k" * 200), (Reason, "r" * 500)),
    *((UUID, NOBODY), (Reason | None, None), (Reason | None, "é"), (CancelAsked | None, None), (CancelAsked | None, {})),
    *((CancelAsked, {"reason": "r", "force": True}), (DrainAsked, {"enabled": False, "reason": "r"})),
    (KindAsked, {"reason": "r", "allow_unknown_kind": True}),
]
NOT_VALID = [
    *(
        (JobNumber, "0"),
        (JobNumber, str(2**63)),
        (JobNumber, "7x"),
        (JobNumber, "-1"),
        (Small, 0),
        (Small, 1001),
        (Small, None),
    ),
    *((Kind, ""), (Kind, "k" * 201), (Reason, ""), (Reason, "r" * 501), (Reason, "\x00"), (Reason, "\ud800"), (Reason, 7)),
    *((UUID, "7"), (Reason, None), (CancelAsked, {"force": "yes"}), (CancelAsked, {"other": 1}), (CancelAsked, "r")),
    *((DrainAsked, {"reason": "r"}), (DrainAsked, {"enabled": 1, "reason": "r"}), (KindAsked, {"reason": "", "other": 1})),
]
UNCERTAIN = [
    *((JobNumber, "٧"), (JobNumber, " 7"), (JobNumber, 7.0), (JobNumber, True), (UUID, NOBODY.upper()), (KindAsked, None)),
    *((int | str, 7), (float, 0.5), (Annotated[int, Field(ge=1)], 7), (Annotated[int, Rule(gt=1)], 7)),
    (KindAsked, {"reason": "r", "allow_unknown_kind": "on"}),
]


@pytest.mark.parametrize(("kind", "value"), CERTAIN)
def test_a_certain_value_is_taken_as_pydantic_takes_it(kind: Any, value: Any) -> None:
    found = certain.valid(kind, value)

    expected = TypeAdapter(kind).validate_python(value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(("kind", "value"), NOT_VALID)
def test_a_value_that_pydantic_refuses_is_left_to_the_api(kind: Any, value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)
    with pytest.raises(NotHandled):
        certain.valid(kind, value)


@pytest.mark.parametrize(("kind", "value"), UNCERTAIN)
def test_a_value_or_a_type_that_is_not_certain_is_left_to_the_api(kind: Any, value: Any) -> None:
    with pytest.raises(NotHandled):
        certain.valid(kind, value)
