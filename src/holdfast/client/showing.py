"""How far something is, for the eyes: bars in a terminal, a card that changes in a notebook, nothing in a pipe.

What there is to see is a `Picture`, made by whoever waits. The two ways to show it know nothing of jobs or snapshots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Generic, TypeVar

from holdfast.client.card import card

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One part of the work. `share` is 0 to 1, or None where nobody knows."""

    name: str
    state: str
    share: float | None
    says: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole at one moment."""

    title: str
    state: str
    lines: Sequence[Line]
    says: str = ""


class Showing(Generic[T]):
    """Shows nothing: what waits in a script that nobody watches."""

    def show(self, found: T) -> None:
        """This is how it stands."""

    def __enter__(self) -> Showing[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to put away."""


class Bars(Showing[T]):
    """A bar per line, on standard error."""

    def __init__(self, picture_of: Callable[[T], Picture]) -> None:
        rich = import_module("rich.progress")
        self._picture_of = picture_of
        columns = (
            rich.SpinnerColumn(finished_text="[green]✓"),
            rich.TextColumn("{task.fields[name]}", markup=False),
            rich.BarColumn(bar_width=24),
            rich.TaskProgressColumn(),
            rich.TextColumn("{task.fields[says]}", markup=False),
            rich.TimeElapsedColumn(),
        )
        self._bars = rich.Progress(*columns, console=import_module("rich.console").Console(stderr=True))
        self._tasks: dict[str, Any] = {}

    def show(self, found: T) -> None:
        for line in self._picture_of(found).lines:
            if line.name not in self._tasks:
                self._tasks[line.name] = self._bars.add_task("", total=None, name=line.name, says="")
            share = 1.0 if line.state == "completed" else line.share
            self._bars.update(
                self._tasks[line.name],
                total=None if share is None else 1.0,
                completed=share or 0.0,
                says=line.says or line.state,
            )

    def __enter__(self) -> Bars[T]:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()


class Card(Showing[T]):
    """One card in a notebook, drawn anew when something has changed."""

    def __init__(self, picture_of: Callable[[T], Picture]) -> None:
        self._picture_of, self._drawn = picture_of, ""
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


def bars_or_card(picture_of: Callable[[T], Picture], *, show: bool = True) -> Showing[T]:
    """The way to show it here."""
    if not show:
        return Showing()
    if _is_notebook():
        return Card(picture_of)
    return Bars(picture_of) if sys.stderr.isatty() else Showing()


def _is_notebook() -> bool:
    """Whether this runs in a kernel that shows HTML: a kernel has one, IPython in a terminal has not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
