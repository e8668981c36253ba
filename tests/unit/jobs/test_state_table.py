"""The table of legal transitions in the code. The database's copy is tested in tests/postgres."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.jobs.pipelines import PipelineStatus, status_of
from holdfast.jobs.states import ENDED, LEGAL_MOVES, LIVE, WAITING, Move, State, is_legal, legal_pairs


def test_every_transition_has_a_target() -> None:
    assert set(LEGAL_MOVES) == set(Move)
    assert all(LEGAL_MOVES.values())


def test_every_state_is_live_or_ended() -> None:
    assert set(State) == LIVE | ENDED
    assert not LIVE & ENDED
    assert WAITING < LIVE


def test_only_an_operator_restarts_an_ended_job() -> None:
    from_the_end = {move for move, pairs in LEGAL_MOVES.items() for before, _ in pairs if before in ENDED}

    assert from_the_end == {Move.RERUN}


def test_completed_is_final() -> None:
    assert not any(before is State.COMPLETED for before, _ in legal_pairs())


def test_only_a_claim_leads_to_running() -> None:
    to_running = {move for move, pairs in LEGAL_MOVES.items() for _, after in pairs if after is State.RUNNING}

    assert to_running == {Move.CLAIM, Move.POLL}


def test_only_a_running_job_completes_or_fails() -> None:
    before = {before for before, after in legal_pairs() if after in (State.COMPLETED, State.FAILED)}

    assert before == {State.RUNNING}


def test_transition_is_legal_exactly_if_the_table_has_it() -> None:
    for move, before, after in product(Move, State, State):
        assert is_legal(move, before, after) == ((before, after) in LEGAL_MOVES[move])


R, C, F, X = State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELLED
STATUSES: list[tuple[dict[State, int], PipelineStatus]] = [
    ({C: 3}, PipelineStatus.COMPLETED),
    ({C: 3, F: 1}, PipelineStatus.PARTIAL),
    ({C: 1, X: 2}, PipelineStatus.PARTIAL),
    ({C: 1, F: 1, X: 1}, PipelineStatus.PARTIAL),
    ({F: 2}, PipelineStatus.FAILED),
    ({F: 1, X: 4}, PipelineStatus.FAILED),
    ({X: 2}, PipelineStatus.CANCELLED),
    ({R: 1, C: 2, F: 1}, PipelineStatus.RUNNING),
    ({State.PENDING: 1, F: 1}, PipelineStatus.RUNNING),
    ({State.BLOCKED: 1, X: 1}, PipelineStatus.RUNNING),
    ({State.SUBMITTED: 1}, PipelineStatus.RUNNING),
    ({C: 2, R: 0}, PipelineStatus.COMPLETED),
]


@pytest.mark.parametrize(("counts", "status"), STATUSES)
def test_pipeline_status_is_derived_from_its_jobs(counts: dict[State, int], status: PipelineStatus) -> None:
    assert status_of(counts) is status
