"""One table: its health with its parts, the plan of a dry run, what the last runs changed, its history, savings and lock."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from holdfast.console.view import Shown, View
from holdfast.services.maintenance.api.dependencies import maintenance_of
from holdfast.services.maintenance.api.tables import known_table, view_of
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.pages.changes import changes_of, plan_of, saved_together, suggested
from holdfast.services.maintenance.pages.tables import TONES
from holdfast.services.maintenance.run import read
from holdfast.services.maintenance.run.request import lock_key
from holdfast.services.maintenance.run.submit import holder_of

LENGTH: Final = 20
COMPARED: Final = 3  # the last runs that are shown with their figures before and after


async def show(view: View) -> Shown:
    """One table of a catalog; without `catalog` in the address: of the first one."""
    here = maintenance_of(view.request)
    path = view.request.path_params
    ref = TableRef(view.given("catalog") or here.default_catalog, str(path["db"]), str(path["table"]))
    row = await known_table(view.conn, here, ref)
    before = view.number("before")
    found = await read.history(view.conn, ref, here.prices, limit=LENGTH, before=before)
    runs = found[:LENGTH]
    own = f"tables/{quote(ref.namespace, safe='')}/{quote(ref.name, safe='')}"
    parts = [] if row.of_health is None else list(row.of_health.parts)
    plan = plan_of(runs) if before is None else None
    ended = [run for run in runs if run.finished_at is not None and not run.dry_run]
    values = {
        "table": view_of(row),
        "ref": ref,
        "tones": TONES,
        "parts": parts,
        "suggested": suggested(parts),
        "plan": plan,
        "plan_actions": "" if plan is None else ", ".join(one.action for one in plan.actions),
        "planned": [] if plan is None else [(one, changes_of([one])) for one in plan.actions],
        "compared": [(run, changes_of(run.actions)) for run in ended[:COMPARED]],
        "runs": runs,
        "saved": saved_together(runs, here.prices),
        "ended": len(ended),
        "key": lock_key(ref),
        "holder": await holder_of(view.conn, row.running_job_id, lock_key(ref)),
        "older": view.link(own, catalog=ref.catalog, before=runs[-1].job_id) if len(found) > LENGTH else None,
        "newest": view.link(own, catalog=ref.catalog) if before is not None else None,
    }
    return Shown("table.html", values, title=f"{ref.namespace}.{ref.name}")
