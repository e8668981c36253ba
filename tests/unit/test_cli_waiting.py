"""Ctrl-C during a wait reports that the job continues, at any step."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.toolkit.cli.output import Output
from holdfast.toolkit.cli.waiting import follow, wait_for


class InterruptedAt:
    """A session in which the user presses Ctrl-C at the given poll. Its other polls find the job in `state`."""

    def __init__(self, poll: int, state: str) -> None:
        self.out, self._left, self._state = Output(), poll, state

    def get(self, path: str) -> dict[str, Any]:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return {"id": 7, "state": self._state, "status": self._state, "progress": None, "message": None}


@pytest.mark.parametrize("poll", [1, 2])
def test_ctrl_c_during_a_poll_reports_that_the_job_continues(poll: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        wait_for(InterruptedAt(poll, "pending"), [7], None)  # type: ignore[arg-type]

    assert "the job continues. To cancel it: holdfast job cancel 7" in capsys.readouterr().err


def test_ctrl_c_names_the_job_that_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        wait_for(InterruptedAt(2, "completed"), [6, 7], None)  # type: ignore[arg-type]

    assert "holdfast job cancel 7" in capsys.readouterr().err


def test_cancelling_caller_prints_its_own_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        wait_for(InterruptedAt(1, "pending"), [7], None, leaves_running=False)  # type: ignore[arg-type]

    assert "continues" not in capsys.readouterr().err


def test_ctrl_c_while_following_reports_that_the_job_continues(capsys: pytest.CaptureFixture[str]) -> None:
    session = InterruptedAt(2, "creating")
    session.transport = session  # type: ignore[attr-defined]
    session.wait_for_change = lambda seconds: None  # type: ignore[attr-defined]

    with pytest.raises(KeyboardInterrupt):
        follow(session, lambda: session.get("/"), str, name="snapshot 3", ends=("ready",), timeout=None, interval=0.1)  # type: ignore[arg-type]

    assert "Stopped watching; snapshot 3 continues." in capsys.readouterr().err
