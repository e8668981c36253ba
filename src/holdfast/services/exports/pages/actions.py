"""The buttons of the pages: each calls a route of the API. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.console.actions import Action, Field

DURATION = "An ISO 8601 duration such as P7D or PT12H; empty: no limit."

ACTIONS: Final = (
    Action(
        name="mapping.snapshot",
        label="New snapshot",
        policy="snapshots.create",
        path="/api/snapshots",
        says="A snapshot of mapping {mapping_id} is created: one export job for each node and edge.",
        target="mapping/{mapping_id}",
        back="mappings/{mapping_id}",
        fields=(
            Field("mapping_id", "Mapping", "number", required=True),
            Field("name", "Name", help="Default: the name of the mapping and its version."),
            Field("ttl", "Keep for", help=DURATION),
        ),
        reason="none",
        done="The snapshot was created.",
    ),
    Action(
        name="mapping.copy",
        label="Copy",
        policy="mappings.create",
        path="/api/mappings/{mapping_id}/copy",
        says="A new mapping is created from the current version of mapping {mapping_id}. You own it.",
        target="mapping/{mapping_id}",
        back="mappings",
        fields=(Field("name", "Name of the copy", required=True),),
        reason="none",
        done="The mapping was copied.",
    ),
    Action(
        name="mapping.delete",
        label="Delete",
        policy="mappings.change",
        method="DELETE",
        path="/api/mappings/{mapping_id}",
        says="Mapping {mapping_id} is deleted with all its versions. Refused while it has snapshots.",
        target="mapping/{mapping_id}",
        back="mappings",
        reason="none",
        danger=True,
        done="The mapping was deleted.",
    ),
    Action(
        name="snapshot.cancel",
        label="Cancel",
        policy="snapshots.change",
        path="/api/snapshots/{snapshot_id}/cancel",
        says="Waiting exports of snapshot {snapshot_id} are cancelled, and running ones are asked to stop.",
        target="snapshot/{snapshot_id}",
        back="snapshots/{snapshot_id}",
        danger=True,
        done="The snapshot is being cancelled.",
    ),
    Action(
        name="snapshot.retry",
        label="Retry",
        policy="snapshots.change",
        path="/api/snapshots/{snapshot_id}/retry",
        says="The failed and cancelled exports of snapshot {snapshot_id} run again. Completed ones are kept.",
        target="snapshot/{snapshot_id}",
        back="snapshots/{snapshot_id}",
        done="The exports run again.",
    ),
    Action(
        name="snapshot.extend",
        label="Extend",
        policy="snapshots.change",
        method="PUT",
        path="/api/snapshots/{snapshot_id}/lifecycle",
        says="Snapshot {snapshot_id} is kept for this long from its creation, or until it is not used for this long.",
        target="snapshot/{snapshot_id}",
        back="snapshots/{snapshot_id}",
        fields=(
            Field("ttl", "Time to live", help=DURATION),
            Field("inactivity_timeout", "Inactivity timeout", help=DURATION),
        ),
        reason="none",
        done="The limits were set.",
    ),
    Action(
        name="snapshot.delete",
        label="Delete",
        policy="snapshots.change",
        method="DELETE",
        path="/api/snapshots/{snapshot_id}",
        says="Snapshot {snapshot_id} is deleted, and a job removes its files. Refused while it is in use.",
        target="snapshot/{snapshot_id}",
        back="snapshots",
        reason="none",
        danger=True,
        done="The snapshot was deleted.",
    ),
)
