"""The kinds and effects of the services, and who may use them over HTTP. Filled by: `catalog.py`. Asked by: `reserved.py`."""

from __future__ import annotations

from typing import Final

from holdfast.registry import Registry

KINDS: Final = Registry[bool]("kinds", {})  # kind: whether it is public
PREFIXES: Final = Registry[str]("name", {"holdfast": "the control plane"})  # first word of a kind: who owns such kinds
# By kind of effect: the function that says why a remote worker may not record it; "": it never may.
EFFECTS: Final = Registry[str]("effects", {})
