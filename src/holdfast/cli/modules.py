"""Commands that import modules of the user. Called by: `worker run`, `worker remote`, `scheduler run`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class RunsModules(TyperCommand):
    """A command that takes modules with `--import`, and refuses a module that is given without it."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            ctx.fail(f"Pass modules with --import: {ctx.command_path} {' '.join(f'--import {name}' for name in rest)}")
        return rest
