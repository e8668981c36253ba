"""The kinds of the services, and whether users may enqueue them. Filled by: `catalog.py`. Asked by: `reserved.py`."""

from __future__ import annotations

from typing import Final

from holdfast.registry import Registry

KINDS: Final = Registry[bool]("kinds", {})  # kind: whether it is public
PREFIXES: Final = Registry[str]("name", {"holdfast": "the control plane"})  # first word of a kind: who owns such kinds
