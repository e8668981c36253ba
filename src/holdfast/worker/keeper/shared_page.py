"""A page of memory that a keeper and its executor share: each can read it while the other is blocked. Used by: both.

The keeper writes when the lease that it renewed expires: an executor whose interpreter is blocked can neither renew its lease
nor receive a message. The executor writes when the lease that it renewed itself expires, when its event loop last ran, and
which attempts it has begun: the keeper needs those after the executor has died. They are fence tokens and not job ids, because
an executor that lost a job may still run it while it holds the next attempt. Times are readings of the monotonic clock, which
is the same for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import tempfile

from holdfast.worker.context import Lease

KEEPER_UNTIL, EXECUTOR_UNTIL, LOOP_RAN_AT = range(3)
TIMES = 3
WORD = 8  # bytes; each word is written atomically and has one writer


class SharedPage:
    """The shared page, with a slot for each job that may run at once."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        whole = memoryview(self._memory)
        self.times = whole[: TIMES * WORD].cast("d")
        self.begun = whole[TIMES * WORD :].cast("q")  # fence tokens; 0 is an empty slot

    @classmethod
    def new(cls, slots: int) -> SharedPage:
        """A page that only this process and those that inherit its descriptor can read."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("holdfast")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, (TIMES + slots) * WORD)
        return cls(descriptor)

    def extend_lease(self, until: float, now: float) -> None:
        """The keeper renewed the lease until then. Ignored if the lease has expired meanwhile: other workers may have the jobs,
        and the executor's own heartbeat must find that out before its handlers continue."""
        known = max(self.times[KEEPER_UNTIL], self.times[EXECUTOR_UNTIL])
        if now < known:
            self.times[KEEPER_UNTIL] = until

    def close(self) -> None:
        self.times.release()
        self.begun.release()
        self._memory.close()
        os.close(self.descriptor)


class SharedLease(Lease):
    """The lease of an executor, which its own heartbeat and its keeper's renew: it expires at the later of the two times."""

    def __init__(self, seconds: float, page: SharedPage) -> None:
        self._page = page
        super().__init__(seconds)

    @property
    def until(self) -> float:
        return max(self._page.times[KEEPER_UNTIL], self._page.times[EXECUTOR_UNTIL])

    @until.setter
    def until(self, at: float) -> None:
        self._page.times[EXECUTOR_UNTIL] = at

    def begin(self, fence_token: int) -> None:
        """Note that this attempt is about to run. Called by its lane, so there is always a free slot."""
        self._replace(0, fence_token)

    def end(self, fence_token: int) -> None:
        self._replace(fence_token, 0)

    def _replace(self, old: int, new: int) -> None:
        begun = self._page.begun
        for slot in range(len(begun)):
            if begun[slot] == old:
                begun[slot] = new
                return
