"""The buttons of the pages: each calls a route of the API. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.console.actions import Action, Field

ACTIONS: Final = (
    Action(
        name="ingestion.recalculate",
        label="Recalculate",
        policy="ingestion.dispatch",
        path="/api/ingestion/recalculations",
        says="The emissions of a year are recalculated, then aggregated. One pipeline.",
        target="recalculation",
        back="ingestion",
        fields=(
            Field("year", "Year", "number", required=True),
            Field("module", "Module", help="Empty: every module."),
            Field("det", "Data entry type", help="Empty: every type of the module."),
            Field("only_due", "Only types that have changed since", "checkbox"),
        ),
        reason="none",
        done="The recalculation was started, or one for the same waits already.",
    ),
)
