"""Show how far something is while it is waited for: bars in a terminal, a living card in a notebook, nothing in a script."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

Bar = tuple[str, float, str]  # name, share, what it says


class Shown(Protocol):
    """Something that shows."""

    def update(self, thing: Any, bars: Sequence[Bar]) -> None: ...


class Silent:
    """For programs."""

    def update(self, thing: Any, bars: Sequence[Bar]) -> None:
        """Nobody looks."""


class Bars:
    """For a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def update(self, thing: Any, bars: Sequence[Bar]) -> None:
        for name, share, says in bars:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=1.0, says="")
            self._progress.update(self._tasks[name], completed=share, says=says)


class LiveCard:
    """For a notebook: one output that is replaced."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def update(self, thing: Any, bars: Sequence[Bar]) -> None:
        if self._handle is None:
            self._handle = self._display(thing, display_id=True)
        else:
            self._handle.update(thing)


@contextmanager
def shown_live() -> Iterator[Shown]:
    """Whatever fits where we are."""
    display = _notebook_display()
    if display is not None:
        yield LiveCard(display)
    elif sys.stdout.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[says]}", markup=False),
        )
        with Progress(*columns) as progress:
            yield Bars(progress)
    else:
        yield Silent()


def _notebook_display() -> Any:
    """IPython's `display`, if a kernel with a front end runs us."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return sys.modules["IPython.display"].display  # loaded by every kernel
