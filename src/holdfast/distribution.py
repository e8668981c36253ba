"""The name and version of the package on PyPI, and the command that installs an extra. Nothing else spells them out.

The import name is `holdfast`; `pyproject.toml` reads the version from here.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "holdfast-jobs"
VERSION = "0.1.0"  # read by hatchling, which matches this line


def install_hint(*extras: str) -> str:
    """The command that installs these extras: `pip install 'holdfast-jobs[cli]'`. Pure."""
    return f"pip install '{requirement(*extras)}'"


def requirement(*extras: str) -> str:
    """The package with these extras, as a requirement: `holdfast-jobs[cli]`. Pure."""
    return f"{NAME}[{','.join(extras)}]" if extras else NAME
