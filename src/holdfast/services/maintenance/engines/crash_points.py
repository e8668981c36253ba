"""Every crash point of the engines, with one line each. Pure data. `names.py` of the service includes it."""

from __future__ import annotations

from typing import Final

CRASH_POINTS: Final[dict[str, str]] = {
    "maintenance.rewrite.planned": "The groups of files to rewrite are known, and no file is written.",
    "maintenance.rewrite.writing": "A new data file is partly written.",
    "maintenance.rewrite.written": "The new data files of a group are written, and no snapshot names them.",
    "maintenance.rewrite.committed": "A group is committed; other groups may follow.",
    "maintenance.manifests.written": "New manifests are written, and no snapshot names them.",
    "maintenance.manifests.committed": "The snapshot with the new manifests is committed.",
    "maintenance.expire.chosen": "The snapshots to expire are known, and the table is unchanged.",
    "maintenance.expire.committed": "The snapshots are removed from the table, and their files are still there.",
    "maintenance.expire.deleting": "Some of the files of expired snapshots are deleted.",
    "maintenance.orphans.listed": "The files of the table are listed, and none is deleted.",
    "maintenance.orphans.deleting": "Some of the orphan files are deleted.",
    "maintenance.commit.before": "A commit is about to be sent to the catalog.",
    "maintenance.commit.in_tx": "In the transaction of the catalog: the fence was checked and the table's row is not updated.",
    "maintenance.commit.after": "The catalog has committed, and the action has not continued.",
}
