"""The server that forks programs for the tests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from programs import Programs

pytestmark = pytest.mark.processes


def test_server_of_programs_outlives_the_thread_that_started_it_and_ends_with_its_line(tmp_path: Path) -> None:
    made: list[Programs] = []

    def show_version(programs: Programs) -> int:
        with (tmp_path / "out").open("a") as out:
            return programs.start("--version", env={}, folder=tmp_path, out=out, err=out).wait()

    def start() -> None:
        made.append(Programs())
        show_version(made[0])

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    assert show_version(made[0]) == 0
    assert (tmp_path / "out").read_text().count("holdfast") == 2
    made[0].close()
