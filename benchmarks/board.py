"""Counters that worker processes write and the measuring process reads, in one shared file.

A pipe message per job would cost more than the job; a word in shared memory costs a tenth of a microsecond and the same
for every peer. `time.monotonic_ns()` is one clock for all processes of a machine, so that stamps can be compared.
"""

from __future__ import annotations

import fcntl
import mmap
import time
from pathlib import Path
from typing import Self

WORD = 8
SLOTS = 32
HEADER = 4  # words: slots taken, steps of a chain, number of stamps, spare
SLOT_WORDS = 8  # a cache line for each writer: handled, first claim; the rest is padding
STAMPS_AT = HEADER + SLOTS * SLOT_WORDS


class Board:
    """One file of 64-bit words. Each process that writes takes a slot of its own, so that no count is ever shared."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._memory).cast("Q")
        self.steps = self._words[1]
        self._stamps = self._words[2]
        self._slot = 0

    @classmethod
    def create(cls, path: Path, *, stamps: int = 0, steps: int = 0) -> Self:
        """A new board, for the measuring process."""
        path.write_bytes(bytes((STAMPS_AT + stamps) * WORD))
        board = cls(path)
        board._words[1], board._words[2] = steps, stamps
        board.steps, board._stamps = steps, stamps
        return board

    @classmethod
    def join(cls, path: Path) -> Self:
        """The board as a writer: takes the next free slot. Children of a worker process join for themselves."""
        board = cls(path)
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            taken = board._words[0]
            if taken >= SLOTS:
                raise RuntimeError(f"more than {SLOTS} processes write on one board")
            board._words[0] = taken + 1
        board._slot = HEADER + taken * SLOT_WORDS
        return board

    # What a worker writes.

    def claiming(self) -> None:
        """Call before each claim; only the first one of a process is noted."""
        if not self._words[self._slot + 1]:
            self._words[self._slot + 1] = time.monotonic_ns()

    def started(self, number: int) -> None:
        """Call as the first thing in a handler."""
        if number < self._stamps:
            self._words[STAMPS_AT + number] = time.monotonic_ns()
        self._words[self._slot] += 1

    # What the measuring process reads.

    def handled(self) -> int:
        """How many handlers have started in all processes."""
        return sum(self._words[HEADER + slot * SLOT_WORDS] for slot in range(self._words[0]))

    def first_claim(self) -> int | None:
        """When the first of all workers began its first claim, in monotonic nanoseconds."""
        began = [self._words[HEADER + slot * SLOT_WORDS + 1] for slot in range(self._words[0])]
        return min((at for at in began if at), default=None)

    def stamps(self) -> list[int]:
        """When the handler of job 0, 1, 2 … started; 0 where it has not yet."""
        return list(self._words[STAMPS_AT : STAMPS_AT + self._stamps])

    def close(self) -> None:
        """Release the memory and remove the file."""
        self._words.release()
        self._memory.close()
        self.path.unlink(missing_ok=True)
