"""The buttons of the pages: each calls a route of the API. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.console.actions import Action, Field
from holdfast.services.maintenance.engines.actions import ACTIONS as KNOWN

WHICH = Field(
    "actions",
    "Actions",
    "list",
    required=True,
    help=f"With commas between them: {', '.join(KNOWN)}. Their order does not matter.",
)
QUEUE = Field(
    "wait", "Wait for the table", "checkbox", help="If another job has the table, queue behind it. Otherwise: refused."
)

ACTIONS: Final = (
    Action(
        name="table.plan",
        label="Dry run",
        policy="tables.maintain",
        path="/api/tables/{db}/{table}/maintenance",
        query=("catalog",),
        says="A job plans the maintenance of {db}.{table} in the catalog {catalog} and shows what each action would change. "
        "Nothing is changed, and no lock is taken.",
        target="table/{catalog}.{db}.{table}",
        back="tables/{db}/{table}",
        fields=(WHICH,),
        fixed={"dry_run": True},
        reason="none",
        done="The dry run is in the queue. Its plan is shown here when it has ended.",
    ),
    Action(
        name="table.maintain",
        label="Maintain",
        policy="tables.maintain",
        path="/api/tables/{db}/{table}/maintenance",
        query=("catalog",),
        says="A job maintains {db}.{table} in the catalog {catalog} under the lock of the table. Rows do not change. "
        "expire_snapshots and remove_orphan_files delete files; that cannot be undone.",
        target="table/{catalog}.{db}.{table}",
        back="tables/{db}/{table}",
        fields=(WHICH, QUEUE),
        done="The maintenance of {db}.{table} is in the queue.",
    ),
    Action(
        name="table_policy.delete",
        label="Delete",
        policy="maintenance_policies.write",
        method="DELETE",
        path="/api/maintenance-policies/{name}",
        says="The policy {name} is deleted. Jobs that it has enqueued continue.",
        target="maintenance-policy/{name}",
        back="table-policies",
        reason="none",
        danger=True,
        done="The policy {name} was deleted.",
    ),
)
