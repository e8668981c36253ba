"""`holdfast completion install | show`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from shellingham import ShellDetectionFailure, detect_shell  # type: ignore[import-untyped]
from typer._completion_shared import get_completion_script, install

from holdfast.errors import UsageError

app = typer.Typer(help="Completion of words in your shell.", no_args_is_help=True)

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
PROGRAM, VARIABLE = "holdfast", "_HOLDFAST_COMPLETE"
Shell = Annotated[str | None, typer.Argument(help=f"{', '.join(SHELLS)}; default: the one you are in.", show_default=False)]


@app.command("install")
def install_command(shell: Shell = None) -> None:
    """Let your shell complete commands, options and their values."""
    which, where = install(shell=_shell(shell), prog_name=PROGRAM, complete_var=VARIABLE)
    typer.echo(f"{which} completes holdfast from its next start: {Path(where)}")


@app.command("show")
def show_command(shell: Shell = None) -> None:
    """Print what `install` would write."""
    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=_shell(shell)))


def _shell(named: str | None) -> str:
    if named is None:
        try:
            named = detect_shell()[0]
        except ShellDetectionFailure:
            raise UsageError(f"which shell? Say one of: {', '.join(SHELLS)}") from None
    if named not in SHELLS:
        raise UsageError(f"no completion for {named}; there is: {', '.join(SHELLS)}")
    return named
