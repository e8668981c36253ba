"""The types of problems that only the routes of exports answer with. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.problem_types import ProblemType

PROBLEMS: Final[dict[str, ProblemType]] = {
    "missing-use-case": ProblemType(
        422, "Role required", "Send the header X-Use-Case-Id: the engine runs no query without a role, and there is no default."
    ),
    "engine-unavailable": ProblemType(503, "Engine unavailable", "Try again later; nothing was changed."),
}
