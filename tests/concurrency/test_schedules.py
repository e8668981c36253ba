"""Random schedules on real Postgres, checked against both logs: some of the ten thousand that `make prove` plays.

A failure prints the command that plays it again, statement by statement.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial

import pytest
from proof.actors import finishing
from proof.checker.check import SOMETIMES
from proof.schedules.play import Result, play_all
from proof.schedules.run import HOW_TO_REPLAY

from holdfast.jobs import outcome
from holdfast.jobs.outcome import Backoff, RetryPolicy

SEEDS = range(80 if "HOLDFAST_TEST_EVERYTHING" in os.environ else 40)


async def test_schedules_keep_every_invariant(database: str) -> None:
    broken: list[str] = []
    exercised: set[str] = set()

    def on_result(result: Result) -> bool:
        exercised.update(what for what, count in result.exercised.items() if count)
        broken.extend(f"{violation}\n  replay: {HOW_TO_REPLAY} {result.seed}" for violation in result.violations)
        return False

    await play_all(database, list(SEEDS), on_result)

    assert not broken, "\n".join(broken)
    missing = set(SOMETIMES) - exercised
    assert len(missing) <= len(SOMETIMES) // 5, f"they should meet nearly everything, not miss {sorted(missing)}"


async def test_a_seed_plays_the_same_schedule_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No delay ends by itself: one of the two plays may be slower."""
    monkeypatch.setattr(outcome, "POLL_SECONDS", (3600,) * len(outcome.POLL_SECONDS))
    slow = partial(outcome.decide, policy=RetryPolicy(Backoff.fixed(timedelta(hours=1))))
    monkeypatch.setattr(finishing, "decide", slow)
    executions: list[list[tuple[str, str]]] = []

    def on_result(result: Result) -> bool:
        assert result.execution is not None
        executions.append([(event.what, event.outcome) for event in result.execution.witness.events if event.what != "waited"])
        return False

    await play_all(database, [7, 7], on_result)

    assert executions[0] == executions[1]
