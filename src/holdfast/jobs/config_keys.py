"""The keys of the configuration that may change at run time: default, bounds and meaning of each. Pure data.

`jobs/config.py` reads and writes the values. The kernel has no keys; `catalog.py` adds those of the services.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.registry import Registry


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """An integer that may be changed at run time, within bounds."""

    default: int
    least: int
    most: int
    says: str


KEYS: Final = Registry[ConfigKey]("config_keys", {})
