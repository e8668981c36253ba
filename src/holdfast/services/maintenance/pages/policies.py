"""Policies: the list with the next runs of each, and one policy with the tables that it would maintain now."""

from __future__ import annotations

from typing import Final
from zoneinfo import ZoneInfo

from holdfast.console.view import Shown, View
from holdfast.services.maintenance.api.dependencies import maintenance_of
from holdfast.services.maintenance.pages.tables import TONES
from holdfast.services.maintenance.policies import preview, store
from holdfast.services.maintenance.policies.due import next_runs
from holdfast.services.maintenance.policies.preview import note_of
from holdfast.services.maintenance.tables.health import label_of

LENGTH: Final = 50
SOON: Final = 3
MOST: Final = 200  # tables of a preview on the page


async def show_list(view: View) -> Shown:
    """Policies by name."""
    after = view.given("after")
    found = await store.listed(view.conn, limit=LENGTH + 1, after=after)
    shown = [(one, one.policy) for one in found[:LENGTH]]
    values = {
        "policies": [
            (one, policy, note_of(policy), next_runs(policy, view.now, SOON) if policy.is_scheduled and policy.enabled else [])
            for one, policy in shown
        ],
        "older": view.here(after=shown[-1][0].name) if len(found) > LENGTH else None,
        "newest": view.here(after=None) if after else None,
    }
    return Shown("policies.html", values)


async def show_one(view: View) -> Shown:
    """One policy with its preview. Changes nothing."""
    here = maintenance_of(view.request)
    stored = await store.get(view.conn, str(view.request.path_params["name"]))
    seen = await preview.of(view.conn, stored.policy, default_engine=here.default_engine)
    values = {
        "stored": stored,
        "policy": stored.policy,
        "preview": seen,
        "chosen": [(one, label_of(one.health)) for one in seen.tables if one.skipped is None],
        "skipped": [(one, label_of(one.health)) for one in seen.tables if one.skipped is not None],
        "most": MOST,
        "tones": TONES,
        "zone": ZoneInfo(seen.timezone),
    }
    return Shown("policy.html", values, title=stored.name)
