"""The heavy parts of exports are an extra: each is imported when it is first used, and its absence names the extra.

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazily("pyarrow")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import UsageError


def loaded(module: str) -> Any:
    """The module, or an error that says how to get it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not error.name.startswith("holdfast"):
            raise UsageError(f"exports need {error.name}, which is not installed: pip install 'holdfast[exports]'") from None
        raise


class _Lazy:
    """Stands for a module until somebody asks it for something."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(loaded(self._module), name)
        setattr(self, name, found)
        return found


def lazily(module: str) -> Any:
    """The module, imported when it is first used."""
    return _Lazy(module)
