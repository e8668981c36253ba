"""The engines of this process: each is opened when it is first asked for, and kept until the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.errors import UsageError
from holdfast.services.exports.engines.port import Engine


class Engines:
    """Engines by name. The first name is the default."""

    def __init__(self, openers: Mapping[str, Callable[[], Engine]], *, need_role: frozenset[str] = frozenset()) -> None:
        self._openers = dict(openers)
        self._open: dict[str, Engine] = {}
        self._need_role = need_role

    @property
    def names(self) -> list[str]:
        return list(self._openers)

    @property
    def default(self) -> str:
        if not self._openers:
            raise UsageError("no engine is set up; install holdfast[exports] or set HOLDFAST_TRINO_URL")
        return self.names[0]

    def get(self, name: str) -> Engine:
        """The engine of this name."""
        if name not in self._openers:
            raise UsageError(f"no engine {name!r} is set up here; there are: {', '.join(self.names) or 'none'}")
        if name not in self._open:
            self._open[name] = self._openers[name]()
        return self._open[name]

    def needs_role(self, name: str) -> bool:
        """Whether it runs nothing without a role."""
        return name in self._need_role

    async def close(self) -> None:
        """Close those that were opened."""
        opened, self._open = list(self._open.values()), {}
        for engine in opened:
            await engine.close()
