"""Print the traceback of a failed job. Called by: `job show`, `failure show`."""

from __future__ import annotations

from holdfast.toolkit.cli.output import Row
from holdfast.toolkit.cli.text import plain
from holdfast.toolkit.cli.verb import Session


def print_traceback(session: Session, found: Row) -> None:
    """Print the traceback of a job or of a failure group, if there is one."""
    if found.get("traceback"):
        session.out.console.print("\nlast traceback", style="dim", markup=False)
        session.out.console.print(plain(str(found["traceback"]).strip()), markup=False, soft_wrap=True)
