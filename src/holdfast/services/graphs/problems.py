"""The types of problems that only the routes of graphs answer with. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.problem_types import ProblemType

PROBLEMS: Final[dict[str, ProblemType]] = {
    "limit-exceeded": ProblemType(
        409,
        "Limit exceeded",
        "Delete or suspend an instance, or ask an operator to raise the limit that `limit_type` names.",
    ),
    "graph-not-running": ProblemType(409, "Graph is not running", "Wait until its status is running, or resume it."),
    "graph-unreachable": ProblemType(503, "Graph server does not respond", "Try again; GET …/health and …/logs say more."),
    "not-this-instance": ProblemType(404, "Not found", "Send the secret that this graph server was started with."),
}
