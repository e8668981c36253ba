"""Named places where a test can make this process die. `crashpoint("name")` does nothing until one is armed.

Armed by `HOLDFAST_CRASH_AT=<name>` in the environment of a process (a real SIGKILL), or in process by
`holdfast.testing.crash_at`. A handler is safe when its job ends well whichever point it dies at.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def crashpoint(name: str) -> None:
    """Die here, if somebody armed this point."""
    if _armed:
        die = _armed.get(name)
        if die is not None:
            die()


def arm(name: str, die: Callable[[], None]) -> None:
    """Have `die` called at this point."""
    _armed[name] = die


def disarm(name: str) -> None:
    """Nothing happens at this point any more."""
    _armed.pop(name, None)


def arm_from_settings(name: str | None) -> None:
    """Arm a real SIGKILL of this process."""
    if name:
        arm(name, lambda: os.kill(os.getpid(), signal.SIGKILL))
