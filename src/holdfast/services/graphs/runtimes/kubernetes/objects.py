"""The marks of our objects: names, labels, and whose an object is that has a name of ours. Pure.

Every object of an instance has the same name, so the API server itself refuses a second pod of an instance. The labels say
which start made it; a name alone proves nothing.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.services.graphs.runtimes.interface import InstanceSpec, RuntimeFailed
from holdfast.services.graphs.runtimes.kubernetes import names

LABEL_VALUE: Final = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")
NOT_IN_A_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Whose(enum.Enum):
    """Whose an object is, seen by one start of an instance."""

    OURS = "of this start"
    LEAVING = "of this start, and being deleted"
    EARLIER = "of an earlier start"
    LATER = "of a later start"
    FOREIGN = "not of this instance"


@dataclass(frozen=True, slots=True)
class Marked:
    """What the metadata of one of our objects says."""

    kind: str
    name: str
    uid: str
    instance_id: int
    start_token: str
    fence_token: int
    created_at: datetime
    deleted_at: datetime | None  # by when it should be gone, if it is being deleted


def object_name(installation: str, instance_id: int) -> str:
    """The name of every object of an instance."""
    return f"{installation}-graph-{instance_id}"


def selector(installation: str, instance_id: int | None = None) -> str:
    """The label selector for everything of this installation, or of one instance."""
    parts = [f"{names.INSTALLATION}={installation}", f"{names.MANAGED_BY}=holdfast"]
    parts.append(names.INSTANCE_ID if instance_id is None else f"{names.INSTANCE_ID}={instance_id}")
    return ",".join(parts)


def labels(installation: str, spec: InstanceSpec) -> dict[str, str]:
    """The labels of every object of this start."""
    if not spec.start_token or not LABEL_VALUE.match(spec.start_token):
        raise RuntimeFailed(f"start token {spec.start_token!r} is no label value: letters, digits, '-', '_', '.', at most 63")
    extra = {(key if "/" in key else f"holdfast/{key}"): label_value(value) for key, value in spec.labels.items()}
    return extra | {
        "app.kubernetes.io/name": "holdfast-graph",
        names.COMPONENT: "graph-server",
        names.INSTALLATION: installation,
        names.MANAGED_BY: "holdfast",
        "holdfast/engine": label_value(spec.engine),
        names.INSTANCE_ID: str(spec.instance_id),
        names.START_TOKEN: spec.start_token,
        names.ATTEMPT: str(spec.fence_token),
    }


def label_value(text: str) -> str:
    """The text as a label value: other characters become '-', and it is cut to 63."""
    return NOT_IN_A_LABEL.sub("-", text)[:63].strip("-._")


def marked(kind: str, metadata: Any, installation: str) -> Marked | None:
    """Read the metadata of an object; None if it is not an object of this installation."""
    found: Mapping[str, str] = metadata.labels or {}
    if found.get(names.INSTALLATION) != installation or found.get(names.MANAGED_BY) != "holdfast":
        return None
    number, token, attempt = (found.get(key) for key in (names.INSTANCE_ID, names.START_TOKEN, names.ATTEMPT))
    if not number or not token or not attempt or not number.isdecimal() or not attempt.isdecimal():
        return None
    return Marked(
        kind=kind,
        name=metadata.name,
        uid=metadata.uid,
        instance_id=int(number),
        start_token=token,
        fence_token=int(attempt),
        created_at=metadata.creationTimestamp,
        deleted_at=metadata.deletionTimestamp,
    )


def whose(found: Marked | None, spec: InstanceSpec) -> Whose:
    """Whose an object is that has the name of this instance's."""
    if found is None or found.instance_id != spec.instance_id:
        return Whose.FOREIGN
    if found.start_token == spec.start_token:
        return Whose.OURS if found.deleted_at is None else Whose.LEAVING
    return Whose.EARLIER if found.fence_token < spec.fence_token else Whose.LATER
