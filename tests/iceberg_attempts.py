"""Attempts that run an action in a process of their own, to be killed or frozen. Imported by a process that is then forked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import crashpoints
from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim
from holdfast.services.maintenance.engines.actions import parse_actions
from iceberg_tables import REF, engine_of, fence_of, lake


def attempt(database: str, folder: str, claim: Claim, action: dict[str, Any], crash_at: str = "", wait_at: str = "") -> None:
    """Run one action for an attempt. With `crash_at` the process is killed there; with `wait_at` it writes the file `reached`
    there and waits for the file `go`. The file `outcome` has the end."""
    place = Path(folder)
    crashpoints.arm_from_settings(crash_at)
    if wait_at:
        crashpoints.arm(wait_at, lambda: _wait(place, wait_at))
    with lake(database, place / "lake") as catalogs:
        try:
            engine_of(catalogs, database).run(REF, parse_actions([action])[0], fence_of(claim, database))
        except ClaimLost:
            said = "refused"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        else:
            said = "done"
    (place / "writing").write_text(said)
    (place / "writing").rename(place / "outcome")


def _wait(place: Path, point: str) -> None:
    """Say that the point is reached, and block in a system call until the test writes into the pipe."""
    crashpoints.disarm(point)
    (place / "reached").touch()
    with (place / "go").open("rb") as pipe:
        pipe.read(1)


@contextmanager
def gate(place: Path) -> Iterator[Callable[[], None]]:
    """The pipe that an attempt waits at; the function lets it go on. The pipe is open on both sides, so that no side waits
    for the other to open it: an attempt may be stopped just before it does."""
    os.mkfifo(place / "go")
    pipe = os.open(place / "go", os.O_RDWR)
    try:
        yield lambda: os.write(pipe, b"x") and None
    finally:
        os.close(pipe)
