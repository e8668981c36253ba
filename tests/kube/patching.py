"""JSON merge patches and strategic merge patches, as far as pods, services and their kin need them."""

from __future__ import annotations

import copy
from typing import Any

# Lists whose items are merged by a key; all others are replaced as a whole.
MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "conditions": "type", "ownerReferences": "uid"}


def merged(target: Any, patch: Any, *, strategic: bool, field: str = "") -> Any:
    """The target with the patch applied; null removes a field."""
    if isinstance(patch, dict):
        found = copy.deepcopy(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = merged(found.get(key), value, strategic=strategic, field=key)
        return found
    if strategic and isinstance(patch, list) and field in MERGE_KEYS:
        return _merged_lists(target or [], patch, MERGE_KEYS[field])
    return copy.deepcopy(patch)


def _merged_lists(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    known = {item[key]: item for item in target}
    changed = {item[key]: merged(known.get(item[key]), item, strategic=True) for item in patch}
    return [changed.pop(name, item) for name, item in known.items()] + list(changed.values())
