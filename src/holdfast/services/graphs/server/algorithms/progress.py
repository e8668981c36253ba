"""How far a run is: a fraction from 0 to 1 of the whole run, and what is done of its current step.

A run has three steps. Each has a share of the whole, because nobody knows before how long a step takes. Inside a step the
fraction is counted: rows that were read, iterations or sources that were computed, nodes that were written. An algorithm of a
library that counts nothing stays at the start of its share until it ends.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

EXTRACTING, COMPUTING, WRITING = "extracting", "computing", "writing"
WITH_PROPERTY: Final = {EXTRACTING: (0.0, 0.3), COMPUTING: (0.3, 0.8), WRITING: (0.8, 1.0)}
WITHOUT_PROPERTY: Final = {EXTRACTING: (0.0, 0.3), COMPUTING: (0.3, 1.0)}
EVERY_SECONDS: Final = 0.1  # that the child prints a line

Tell = Callable[[int, int, str], None]  # so much is done, of so much, of what: 16 of 2000 sources


def silent(done: int, of: int, unit: str) -> None:
    """For algorithms that nobody watches."""


def fraction(step: str, done: int, of: int, *, writes: bool) -> float:
    """How much of a whole run is done. Pure."""
    start, end = (WITH_PROPERTY if writes else WITHOUT_PROPERTY)[step]
    return start + (end - start) * min(1.0, max(0.0, done / of if of > 0 else 0.0))


class Lines:
    """The child's side: prints what is done, seldom enough to cost nothing."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._next = out, 0.0

    def tell(self, done: int, of: int, unit: str) -> None:
        """Print it, unless a line was printed a moment ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        self._out.write(json.dumps({"done": done, "of": of, "unit": unit}) + "\n")
        self._out.flush()


def read_line(line: bytes, tell: Tell) -> None:
    """The server's side: pass on what a line of the child says. What a library prints is not such a line."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found: Mapping[str, Any] = json.loads(line)
        tell(int(found["done"]), int(found["of"]), str(found["unit"]))
