"""Commit changes of a table, with our own validation and the fence. Called by: every action that changes a table.

A change is built on the newest snapshot of `main`, and the commit is refused by the catalog if another snapshot came first.
Then the change is built again on that one. A change validates itself against the state of the table (are all files that it
replaces still live, do the same delete files apply?), and not against a list of commits, so it does not matter what other
writers did in between.

Every commit is fenced: see `fence_sql.py` and `fence_tag.py`. If the answer of the catalog is lost, the snapshot is looked up
by its id. If it is not there, its files are kept: removing orphan files will find them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import TableRequirement, TableUpdate

from holdfast.crashpoints import crashpoint
from holdfast.errors import ClaimLost
from holdfast.services.maintenance.engines.interface import EngineFailed, Fence, TableConflict, TableNotFound, TableRef
from holdfast.services.maintenance.engines.pyiceberg.fence_scope import Fenced, fenced
from holdfast.services.maintenance.engines.pyiceberg.fence_tag import TagFence
from holdfast.services.maintenance.engines.pyiceberg.manifests import ManifestFactory, manifests_of
from holdfast.services.maintenance.engines.pyiceberg.updates import add_snapshot, new_snapshot, ref_is, same_table, set_branch

TRIES: Final = 20  # of one commit while other writers are faster
LOOKUPS: Final = 5  # of a snapshot whose commit was not answered
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0


class Conflict(Exception):
    """The table changed so that the change is not valid any more. Nothing was committed: plan again."""


@dataclass(slots=True)
class Built:
    """The content of a new snapshot: its manifests, and which files it adds and removes."""

    manifests: list[ManifestFile]
    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    summary: dict[str, str] = field(default_factory=dict)


class Change(Protocol):
    """A change that produces a snapshot."""

    def build(self, table: Table, factory: ManifestFactory, manifests: list[ManifestFile]) -> Built | None:
        """Build the change on the table as it is now; None if nothing is left to do; `Conflict` if it is not valid any more."""
        ...


@dataclass(frozen=True, slots=True)
class Session:
    """A table that is maintained for one attempt."""

    catalog: Catalog
    ref: TableRef
    fence: Fence
    action: str
    tag: TagFence | None = None  # None: the catalog checks the fence in its own transaction

    def load(self) -> Table:
        """The table as it is now."""
        try:
            return self.catalog.load_table(self.ref.identifier)
        except NoSuchTableError:
            raise TableNotFound(self.ref) from None

    def send(self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
        """Send one commit. `ClaimLost` if the attempt was replaced, `CommitFailedException` if another commit was first."""
        self.fence.check()
        crashpoint("maintenance.commit.before")
        asserted = (same_table(table.metadata), *requirements)
        if self.tag is not None:
            asserted += (self.tag.requirement(),)
        try:
            with fenced(self.fence):
                self.catalog.commit_table(table, asserted, updates)
        except Fenced:
            raise self.fence.lost(f"commit {self.action} of {self.ref}") from None
        except CommitFailedException:
            if self.tag is not None and self.tag.is_gone(self.load()):
                raise self.fence.lost(f"commit {self.action} of {self.ref}") from None
            raise
        crashpoint("maintenance.commit.after")


def commit_change(session: Session, change: Change, *, pause: Callable[[float], None] = time.sleep) -> Snapshot | None:
    """Commit a change on `main`; its snapshot, or None if there was nothing to do. `Conflict` if it is not valid any more."""
    for attempt in range(TRIES):
        table = session.load()
        head = table.metadata.current_snapshot()
        factory = ManifestFactory(table, table.metadata.new_snapshot_id())
        try:
            snapshot = _snapshot(session, change, table, head, factory)
        except BaseException:  # nothing was sent
            _clean_up(table, factory)
            raise
        if snapshot is None:
            _clean_up(table, factory)
            return None
        try:
            _commit_snapshot(session, table, head, snapshot)
        except CommitFailedException:
            if fate_of(session, snapshot, head) is Fate.COMMITTED:  # sent twice by the network, and refused the second time
                return snapshot
            _clean_up(table, factory)
        except ClaimLost:
            _clean_up(table, factory)
            raise
        else:
            return snapshot
        pause(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * random.uniform(0.5, 1.5))  # noqa: S311
    raise TableConflict(f"{session.ref} was changed by others each of the {TRIES} times that {session.action} tried to commit")


def _snapshot(
    session: Session, change: Change, table: Table, head: Snapshot | None, factory: ManifestFactory
) -> Snapshot | None:
    """Build the snapshot and write its manifests."""
    built = change.build(table, factory, manifests_of(head, table.io))
    if built is None:
        return None
    parent, sequence = (head.snapshot_id if head else None), table.metadata.next_sequence_number()
    summary = summary_of(table, built, session.fence.summary(session.action), head)
    place = factory.manifest_list(built.manifests, parent, sequence)
    return new_snapshot((factory.snapshot_id, parent), place, sequence, summary, table.metadata.current_schema_id)


def summary_of(table: Table, built: Built, properties: Mapping[str, str], head: Snapshot | None) -> Summary:
    """The summary of a `replace` snapshot: totals follow from the previous snapshot and from what was added and removed."""
    collector = SnapshotSummaryCollector()
    specs, schema = table.metadata.specs(), table.metadata.schema()
    for file in built.added:
        collector.add_file(file, schema, specs[file.spec_id])
    for file in built.removed:
        collector.remove_file(file, schema, specs[file.spec_id])
    # PyIceberg computes totals for other operations only.
    totals = update_snapshot_summaries(
        Summary(Operation.OVERWRITE, **collector.build()), head.summary if head and head.summary else None
    )
    return Summary(Operation.REPLACE, **{**totals.additional_properties, **built.summary, **properties})


def _commit_snapshot(session: Session, table: Table, head: Snapshot | None, snapshot: Snapshot) -> None:
    updates = (add_snapshot(snapshot), set_branch(MAIN_BRANCH, snapshot.snapshot_id))
    requirements = (ref_is(MAIN_BRANCH, head.snapshot_id if head else None),)
    try:
        session.send(table, requirements, updates)
    except (CommitFailedException, ClaimLost):
        raise
    except Exception as error:  # the catalog or the network failed, at a time that is unknown
        match fate_of(session, snapshot, head):
            case Fate.COMMITTED:
                return
            case Fate.VOID:
                raise CommitFailedException(f"another commit was first ({error})") from error
            case Fate.UNKNOWN:
                raise EngineFailed(
                    f"the catalog did not answer the commit of {session.action} of {session.ref}; it may still be committed, "
                    f"so its files are kept ({type(error).__name__}: {error})"
                ) from error


class Fate(Enum):
    """What became of a commit that failed in an unexpected way."""

    COMMITTED = "committed"
    VOID = "void"  # it is not committed, and the catalog would refuse it from now on
    UNKNOWN = "unknown"


def fate_of(session: Session, snapshot: Snapshot, head: Snapshot | None) -> Fate:
    """Look for the snapshot in the table. If `main` has moved on or its sequence number is taken, it can never be committed."""
    for attempt in range(LOOKUPS):
        try:
            now = session.load().metadata
        except TableNotFound:
            return Fate.VOID
        except Exception:
            time.sleep(min(0.2 * 2**attempt, LONGEST_PAUSE))
            continue
        if now.snapshot_by_id(snapshot.snapshot_id) is not None:
            return Fate.COMMITTED
        current = now.current_snapshot()
        moved = (current.snapshot_id if current else None) != (head.snapshot_id if head else None)
        is_taken = now.next_sequence_number() > (snapshot.sequence_number or 0)
        return Fate.VOID if moved or is_taken else Fate.UNKNOWN
    return Fate.UNKNOWN


def _clean_up(table: Table, factory: ManifestFactory) -> None:
    """Delete the manifests of a snapshot that was certainly not committed."""
    delete_quietly(table, factory.written)
    factory.written.clear()


def delete_quietly(table: Table, paths: list[str]) -> int:
    """Delete our own files that no snapshot names; the number of deleted files. What stays is removed as an orphan later."""
    deleted = 0
    for path in paths:
        with suppress(Exception):
            table.io.delete(path)
            deleted += 1
    return deleted
