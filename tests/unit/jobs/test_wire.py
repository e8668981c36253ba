"""The wire format: what a remote worker sends is what the control plane reads."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import End
from holdfast.jobs.states import Move, State
from holdfast.protocol.wire import SaidEnd, of_end

FULL = End(
    Move.COMPLETE,
    State.COMPLETED,
    delay=timedelta(seconds=2.5),
    result={"rows": 3},
    error="no",
    cause="error",
    errors=1,
    handle={"query": 1},
    poll_count=7,
    poll_errors=8,
    then=[NewJob("next", {"n": 1}, step="a")],
    join=NewJob("join", step="b"),
    detail={"why": "so"},
)


def test_every_field_of_an_end_is_transferred() -> None:
    unset = [field.name for field in fields(End) if getattr(FULL, field.name) == field.default]
    assert unset == ["publish", "prepare"], "a new field is to be set here, and to be said"

    heard = SaidEnd.model_validate(of_end(FULL)).end()

    assert replace(heard, then=list(heard.then)) == FULL
