"""Progress displays: bars in a terminal, a card in a notebook, nothing in a pipe.

They show a `ProgressView`, which the caller makes from a job, a pipeline or another object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Generic, TypeVar

from holdfast.toolkit.client.card import card

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One part of the work. `share` is 0 to 1, or None if it is not known."""

    name: str
    state: str
    share: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ProgressView:
    """The progress of one object."""

    title: str
    state: str
    lines: Sequence[Line]
    note: str = ""


class ProgressDisplay(Generic[T]):
    """Shows nothing: the display of a script."""

    def show(self, found: T) -> None:
        """Show the current progress."""

    def __enter__(self) -> ProgressDisplay[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is open."""


class Bars(ProgressDisplay[T]):
    """A progress bar for each line, on standard error."""

    def __init__(self, progress_of: Callable[[T], ProgressView]) -> None:
        rich = import_module("rich.progress")
        self._picture_of = progress_of
        columns = (
            rich.SpinnerColumn(finished_text="[green]✓"),
            rich.TextColumn("{task.fields[name]}", markup=False),
            rich.BarColumn(bar_width=24),
            rich.TaskProgressColumn(),
            rich.TextColumn("{task.fields[note]}", markup=False),
            rich.TimeElapsedColumn(),
        )
        self._bars = rich.Progress(*columns, console=import_module("rich.console").Console(stderr=True))
        self._tasks: dict[str, Any] = {}

    def show(self, found: T) -> None:
        for line in self._picture_of(found).lines:
            if line.name not in self._tasks:
                self._tasks[line.name] = self._bars.add_task("", total=None, name=line.name, note="")
            share = 1.0 if line.state == "completed" else line.share
            self._bars.update(
                self._tasks[line.name],
                total=None if share is None else 1.0,
                completed=share or 0.0,
                note=line.note or line.state,
            )

    def __enter__(self) -> Bars[T]:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()


class Card(ProgressDisplay[T]):
    """One card in a notebook, updated when something has changed."""

    def __init__(self, progress_of: Callable[[T], ProgressView]) -> None:
        self._picture_of, self._drawn = progress_of, ""
        self._handle: Any = None

    def show(self, found: T) -> None:
        drawn = card(self._picture_of(found))
        if drawn == self._drawn:
            return
        ipython = import_module("IPython.display")
        if self._handle is None:
            self._handle = ipython.display(ipython.HTML(drawn), display_id=True)
        else:
            self._handle.update(ipython.HTML(drawn))
        self._drawn = drawn


def progress_display(progress_of: Callable[[T], ProgressView], *, show: bool = True) -> ProgressDisplay[T]:
    """The display for this environment."""
    if not show:
        return ProgressDisplay()
    if _is_notebook():
        return Card(progress_of)
    return Bars(progress_of) if sys.stderr.isatty() else ProgressDisplay()


def _is_notebook() -> bool:
    """Whether this runs in a notebook kernel, which shows HTML; IPython in a terminal does not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
