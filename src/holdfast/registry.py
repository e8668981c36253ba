"""A table with the kernel's entries, to which services add theirs. Filled by: `catalog.py`, when it is imported.

Each name has one owner. A second declaration of a name is refused with a message that names both owners.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from holdfast.errors import ServiceInvalid

V = TypeVar("V")
KERNEL = "the kernel"


class Registry(Mapping[str, V]):
    """Entries by name, and which service declared each of them."""

    def __init__(self, part: str, entries: Mapping[str, V]) -> None:
        """`part` is the field of `Service` that adds to this table; error messages name it."""
        self.part = part
        self._entries: dict[str, V] = dict(entries)
        self._owners: dict[str, str] = dict.fromkeys(entries, KERNEL)

    def add(self, service: str, entries: Mapping[str, V]) -> None:
        """Add the entries of a service, all or none."""
        for name in entries:
            owner = self._owners.get(name)
            if owner is not None:
                by = owner if owner == KERNEL else f"service {owner!r}"
                raise ServiceInvalid(service, self.part, f"{name!r} is already declared by {by}", "choose another name")
        self._entries |= entries
        self._owners |= dict.fromkeys(entries, service)

    def remove(self, service: str) -> None:
        """Remove the entries of a service. Tests use it to undo `add`."""
        for name in [name for name, owner in self._owners.items() if owner == service]:
            del self._entries[name], self._owners[name]

    def owner_of(self, name: str) -> str:
        """Which service declared the entry, or `KERNEL`."""
        return self._owners[name]

    def __getitem__(self, name: str) -> V:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """The kernel's names, then those of each service, by the service's name: independent of the order of imports."""
        return iter(sorted(self._entries, key=lambda name: (self._owners[name] != KERNEL, self._owners[name])))

    def __len__(self) -> int:
        return len(self._entries)

    def __or__(self, other: Mapping[str, V]) -> dict[str, V]:
        return {**self, **other}

    def __repr__(self) -> str:
        return f"Registry({self.part!r}, {len(self)} entries)"
