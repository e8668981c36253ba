"""The fence of tables in other catalogs: a tag per attempt, which every commit asserts.

A catalog cannot see our jobs, but it checks assertions about refs in the transaction of a commit. An attempt creates its tag
when it begins, in one commit that removes the tags of the attempts before it. Every later commit asserts its tag, so a commit
of a replaced attempt is refused. The name of a tag has the fence token, which grows with every attempt: of two attempts that
claim at the same time, the older one finds the newer tag after its own commit and withdraws.

This is as strong as the catalog: a REST catalog checks assertions on the server; Glue and Hive check them in this process and
compare the metadata location (or hold a lock) when they write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from holdfast.services.maintenance.engines.interface import Fence, TableConflict
from holdfast.services.maintenance.engines.pyiceberg.updates import ref_is, remove_ref, same_table, set_tag

TAG: Final = re.compile(r"holdfast-fence-(?P<token>[0-9]{1,19})-(?P<attempt>.+)")
TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class TagFence:
    """The tag of an attempt on one table, and the snapshot that it names."""

    name: str
    snapshot_id: int

    def requirement(self) -> TableRequirement:
        """The assertion that every commit of the attempt carries."""
        return ref_is(self.name, self.snapshot_id)

    def is_gone(self, table: Table) -> bool:
        """Whether another attempt has removed the tag."""
        ref = table.metadata.refs.get(self.name)
        return ref is None or ref.snapshot_id != self.snapshot_id


def tag_name(fence: Fence) -> str:
    """The name of the tag of this attempt."""
    return f"holdfast-fence-{fence.fence_token}-{fence.attempt_id}"


def token_of(ref: str) -> int | None:
    """The fence token in the name of a tag of ours; None for other refs."""
    match = TAG.fullmatch(ref)
    return int(match["token"]) if match else None


def claim(catalog: Catalog, load: Callable[[], Table], fence: Fence) -> TagFence | None:
    """Take the table for this attempt: create its tag and remove those of earlier attempts. None if it has no snapshot yet.

    `ClaimLost` if a later attempt has it.
    """
    name = tag_name(fence)
    for _ in range(TRIES):
        table = load()
        refs = table.metadata.refs
        ours = {ref: token for ref in refs if (token := token_of(ref)) is not None and ref != name}
        if any(token > fence.fence_token for token in ours.values()):
            _withdraw(catalog, table, name)
            raise fence.lost("claim the table")
        if name in refs and not ours:
            return TagFence(name, refs[name].snapshot_id)
        head = table.metadata.current_snapshot()
        if head is None:
            return None
        fence.check()
        updates: tuple[TableUpdate, ...] = tuple(remove_ref(ref) for ref in ours)
        asserted = [ref_is(ref, refs[ref].snapshot_id) for ref in ours]
        if name not in refs:
            updates += (set_tag(name, head.snapshot_id),)
            asserted.append(ref_is(name, None))
        try:
            catalog.commit_table(table, (same_table(table.metadata), *asserted), updates)
        except CommitFailedException:
            continue
        # The next pass looks at the tags again: one that was created at the same time is there now.
    raise TableConflict(
        f"the fence of {'.'.join(table.name())} changed {TRIES} times while it was being taken; try again later"
    )


def release(catalog: Catalog, load: Callable[[], Table], tag: TagFence) -> None:
    """Remove the tag at the end of an action. If that fails, the next attempt removes it."""
    try:
        _withdraw(catalog, load(), tag.name)
    except Exception:  # the action is done; the tag is only in the way of expiry
        return


def _withdraw(catalog: Catalog, table: Table, name: str) -> None:
    ref = table.metadata.refs.get(name)
    if ref is not None:
        asserted = (ref_is(name, ref.snapshot_id),)
        catalog.commit_table(table, asserted, (remove_ref(name),))
