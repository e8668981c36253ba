"""Locks that are held: by which jobs, since when, and how many jobs wait for each."""

from __future__ import annotations

from typing import Final

from holdfast.console.view import Shown, View
from holdfast.console.views.locks import states_of
from holdfast.jobs.views.locks import list_locks

LENGTH: Final = 50


async def show(view: View) -> Shown:
    """A page of locks, by key."""
    found = await list_locks(view.conn, after=view.given("after"), limit=LENGTH + 1)
    locks = found[:LENGTH]
    holders = await states_of(view.conn, [job for lock in locks for job in lock.jobs[:10]])
    older = view.here(after=locks[-1].key) if len(found) > LENGTH else None
    return Shown("locks.html", {"locks": locks, "holders": holders, "older": older, "first": not view.given("after")})
