"""Which effects a remote worker may record for its attempt. Called by: the worker protocol, before an effect is recorded. Pure.

The cleaners of exports remove folders, stop queries and drop tables with the credentials of the process that runs them. So an
effect has to be about the export of its job: the folder of the attempt at the location of the job, and the engine of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import UsageError
from holdfast.jobs.model import Claim
from holdfast.services.exports.export.payload import KIND, RUN_KIND
from holdfast.services.exports.export.written import attempt_prefix
from holdfast.stores.paths import location_of

PLACES: Final = {KIND: "location", RUN_KIND: "to"}  # the field of the payload that has the location, by kind of job
TARGET: Final = ("engine", "catalog", "schema", "role")


def reason_against(claim: Claim, kind: str, tag: str | None, detail: Mapping[str, Any]) -> str | None:
    """Why this effect is not one of this attempt; None if it is."""
    if claim.kind not in PLACES:
        return f"a job of the kind {claim.kind} has none"
    if detail.get("prefix") != attempt_prefix(claim.attempt_id):
        return f"its prefix must be {attempt_prefix(claim.attempt_id)}, the folder of the attempt"
    if kind == "export.prefix":
        place = claim.payload.get(PLACES[claim.kind])
        return None if _is_at(detail.get("to"), place) else f"it must be at the location of the job, {place}"
    if claim.kind != KIND:
        return f"a job of the kind {claim.kind} has none"
    if any(detail.get(name) != claim.payload.get(name) for name in TARGET):
        return f"its {', '.join(TARGET)} must be those of the job"
    named = str(detail.get("tag", "")) if kind == "export.table" else tag
    if named is not None and not named.startswith(f"export.query-{claim.id}-"):
        return f"its tag must begin with export.query-{claim.id}-"
    return None


def _is_at(to: Any, place: Any) -> bool:
    try:
        return isinstance(to, str) and isinstance(place, str) and location_of(to) == location_of(place)
    except (UsageError, ValueError):
        return False
