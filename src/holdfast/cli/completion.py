"""`holdfast completion install | show`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from shellingham import ShellDetectionFailure, detect_shell  # type: ignore[import-untyped]
from typer._completion_shared import get_completion_script, install

from holdfast.errors import UsageError
from holdfast.toolkit.cli.output import Format
from holdfast.toolkit.cli.verb import Session, verb

app = typer.Typer(help="Install shell completion.", no_args_is_help=True)

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
PROGRAM, VARIABLE = "holdfast", "_HOLDFAST_COMPLETE"
Shell = Annotated[str | None, typer.Argument(help=f"{', '.join(SHELLS)}; default: the current shell.", show_default=False)]


@verb(app, "install")
def install_command(session: Session, shell: Shell = None) -> None:
    """Install completion of commands, options and values for your shell."""
    which, where = install(shell=_shell(shell), prog_name=PROGRAM, complete_var=VARIABLE)
    session.out.value("installed", f"Completion for {which} is installed in {Path(where)}; start a new shell to use it.")


@verb(app, "show")
def show_command(session: Session, shell: Shell = None) -> None:
    """Print the script that `install` writes."""
    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=_shell(shell))
    if session.out.format is Format.JSON:
        session.out.value("script", script)
    else:
        typer.echo(script)


def _shell(named: str | None) -> str:
    if named is None:
        try:
            named = detect_shell()[0]
        except ShellDetectionFailure:
            raise UsageError(f"the shell is not known; pass one of: {', '.join(SHELLS)}") from None
    if named not in SHELLS:
        raise UsageError(f"there is no completion for {named!r}; pass one of: {', '.join(SHELLS)}")
    return named
