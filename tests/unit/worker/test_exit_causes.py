"""Why a process ended, and how soon the next one starts: both decided without a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.worker.exit_causes import OomCounter, exit_cause, restart_delay


@pytest.mark.parametrize(
    ("returncode", "oom", "cause"),
    [
        (-9, False, "SIGKILL"),
        (-9, True, "oom"),
        (-11, True, "SIGSEGV"),
        (-11, False, "SIGSEGV"),
        (-6, False, "SIGABRT"),
        (-63, False, "signal 63"),
        (137, False, "oom"),
        (0, False, "exit 0"),
        (3, True, "exit 3"),
    ],
)
def test_each_exit_status_has_its_cause(returncode: int, oom: bool, cause: str):
    """The out-of-memory killer sends SIGKILL, too: only the counter of the cgroup makes the difference."""
    assert exit_cause(returncode, oom_kills_rose=oom).cause == cause


def test_the_first_restart_is_immediate_and_later_ones_are_delayed_up_to_a_bound():
    delays = [restart_delay(lives) for lives in range(12)]

    assert delays[:2] == [0.0, 0.0]
    assert delays == sorted(delays)
    assert delays[-1] == restart_delay(10_000) == 10.0


def cgroup(tmp_path: Path, line: str, file: str, text: str) -> tuple[Path, Path, Path]:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text(line + "\n")
    counter = root / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    return own, root, counter


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/", "memory.events"),
        ("0::/kubepods/pod1", "kubepods/pod1/memory.events"),
        ("0::/the/path/of/the/host", "memory.events"),
        ("4:memory:/docker/1", "memory/docker/1/memory.oom_control"),
        ("4:memory:/the/path/of/the/host", "memory/memory.oom_control"),
    ],
)
def test_an_oom_kill_is_seen_with_either_version_of_cgroups(tmp_path: Path, line: str, file: str):
    own, root, counter = cgroup(tmp_path, line, file, "oom 7\noom_kill 1\noom_kill_disable 0\n")
    seen = OomCounter(own, root)
    assert not seen.rose()

    counter.write_text("oom 8\noom_kill 2\noom_kill_disable 0\n")

    assert seen.rose()
    assert not seen.rose()  # reported once


@pytest.mark.parametrize("line", ["0::/", "", "9:cpu:/x"])
def test_oom_counter_never_rises_without_a_cgroup(tmp_path: Path, line: str):
    (tmp_path / "own").write_text(line)
    assert not OomCounter(tmp_path / "own", tmp_path / "nothing").rose()
    assert not OomCounter(tmp_path / "not there", tmp_path).rose()


def test_a_poll_between_the_kill_and_the_exit_does_not_hide_the_cause(tmp_path: Path) -> None:
    """The kernel counts first; a keeper whose heartbeat comes in between must still know why its executor ended, once."""
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    counter = OomCounter(tmp_path / "own", tmp_path)

    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    counter.poll()
    counter.poll()

    assert counter.rose()
    assert not counter.rose()


def test_an_old_oom_kill_is_not_the_cause_of_a_later_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    counter = OomCounter(tmp_path / "own", tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    counter.poll()

    monkeypatch.setattr("holdfast.worker.exit_causes.RECENTLY", 0.0)

    assert not counter.rose()
