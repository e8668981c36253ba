"""The types of problems that only the routes of maintenance answer with. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.problem_types import ProblemType

PROBLEMS: Final[dict[str, ProblemType]] = {
    "unknown-table": ProblemType(
        404,
        "Unknown table",
        "Check the catalog, database and name (GET /api/tables); the catalog was asked before this answer.",
    ),
    "table-locked": ProblemType(
        409,
        "Table is being maintained",
        "Wait until the job `holder_job_id` ends, cancel it, or send `wait: true` to queue behind it.",
    ),
    "orphan-age-too-low": ProblemType(
        403,
        "Age of orphan files is too low",
        "Use an `older_than` of at least 7 days; or let an admin send `force: true` with a `reason`.",
    ),
    "catalog-unavailable": ProblemType(503, "Catalog unavailable", "Try again later; nothing was changed."),
}
