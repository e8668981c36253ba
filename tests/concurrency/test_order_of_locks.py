"""Ends lock rows first and keys after, each in one order: these schedules deadlocked before."""

from __future__ import annotations

from proof.schedules.play import Result, play_all
from proof.schedules.run import HOW_TO_REPLAY

SEEDS = [7808, 1768, 2058, 5507, 2101, 3988]


async def test_former_deadlock_schedules_pass(database: str) -> None:
    """An end with dependants that hold locks beside a claim, a cancel and an enqueue that want the same keys."""
    played: list[int] = []
    broken: list[str] = []

    def on_result(result: Result) -> bool:
        played.append(result.seed)
        broken.extend(f"{violation}\n  replay: {HOW_TO_REPLAY} {result.seed}" for violation in result.violations)
        return False

    await play_all(database, SEEDS, on_result)

    assert not broken, "\n".join(broken)
    assert played == SEEDS
