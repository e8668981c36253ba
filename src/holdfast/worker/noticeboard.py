"""A page of shared memory that a keeper and its executor can both read at any time, whatever the other one is doing.

The keeper writes until when the lease is good: an executor whose interpreter is blocked can neither renew it nor be told.
The executor writes until when it knows that by itself, when its event loop last turned, and which jobs have begun: what
was in a process when it died must be known after it did. Times are readings of the monotonic clock, which is one and the
same for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import tempfile

from holdfast.worker.context import Lease

KEPT_UNTIL, OWN_UNTIL, TURNED_AT = range(3)
TIMES = 3
WORD = 8  # bytes; each is written in one piece, and has one writer


class Noticeboard:
    """The shared page, with a place for each job that may run at once."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        whole = memoryview(self._memory)
        self.times = whole[: TIMES * WORD].cast("d")
        self.begun = whole[TIMES * WORD :].cast("q")  # job ids; 0 is an empty place

    @classmethod
    def new(cls, places: int) -> Noticeboard:
        """A page that only we and those who inherit its descriptor can see."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("holdfast")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, (TIMES + places) * WORD)
        return cls(descriptor)

    def keep_until(self, until: float, now: float) -> None:
        """Say that the lease is good until then, unless it has lapsed meanwhile: then its jobs may be somebody else's, and
        the executor's own beat must find out before anything goes on."""
        known = max(self.times[KEPT_UNTIL], self.times[OWN_UNTIL])
        if now < known:
            self.times[KEPT_UNTIL] = until

    def close(self) -> None:
        self.times.release()
        self.begun.release()
        self._memory.close()
        os.close(self.descriptor)


class KeptLease(Lease):
    """The lease of an executor: as long as its own beats or its keeper's say, whichever is later."""

    def __init__(self, seconds: float, board: Noticeboard) -> None:
        self._board = board
        super().__init__(seconds)

    @property
    def until(self) -> float:
        return max(self._board.times[KEPT_UNTIL], self._board.times[OWN_UNTIL])

    @until.setter
    def until(self, at: float) -> None:
        self._board.times[OWN_UNTIL] = at

    def begin(self, job_id: int) -> None:
        """Note that this job is about to run: from its lane, so there is always a place."""
        self._put(job_id, instead_of=0)

    def end(self, job_id: int) -> None:
        self._put(0, instead_of=job_id)

    def _put(self, value: int, *, instead_of: int) -> None:
        begun = self._board.begun
        for place in range(len(begun)):
            if begun[place] == instead_of:
                begun[place] = value
                return
