"""The types of problems that only the routes of ingestion answer with. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.problem_types import ProblemType

PROBLEMS: Final[dict[str, ProblemType]] = {
    "year-not-provisioned": ProblemType(
        409, "Year not provisioned", "Sync the units of this year first: POST /api/ingestion/units."
    ),
    "slot-waiting": ProblemType(
        409,
        "A job waits in this slot",
        "Send it again after the waiting job has started, cancel that job, or send `if_waiting: supersede`.",
    ),
    "unreadable-file": ProblemType(422, "Unreadable file", "Fix the file as `detail` says, and upload it again."),
    "source-unavailable": ProblemType(503, "Source unavailable", "Try again later; nothing was changed."),
}
