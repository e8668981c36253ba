"""What keeps the memory of an ingestion independent of the size of its file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from holdfast.services.ingestion.jobs.memory import peak_memory
from holdfast.services.ingestion.sources.csv_chunks import Malformed
from holdfast.services.ingestion.sources.dialect import Dialect
from holdfast.services.ingestion.staging import tables
from holdfast.services.ingestion.staging.tables import Staging

MIB = 1024 * 1024
COUNT = 40  # MiB: more than the buffers of a socket hold
STOP = """
    CREATE FUNCTION holdfast_staging.wait_for_the_test() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;
    CREATE TRIGGER stop BEFORE INSERT ON {rows} FOR EACH ROW EXECUTE FUNCTION holdfast_staging.wait_for_the_test()
"""


class LongRows:
    """A file of rows of one MiB each, with one column."""

    first_line, size, read, is_trimmed = 2, COUNT * MIB, 0, True

    def __init__(self) -> None:
        self.count, self.dialect, self.header = 0, Dialect("utf-8", ",", '"', "."), ["name"]
        self.malformed: list[Malformed] = []

    def pieces(self) -> Iterator[bytes]:
        for _ in range(COUNT):
            self.count += 1
            yield b"x" * (MIB - 1) + b"\n"


async def test_a_file_is_read_no_faster_than_the_database_takes_it(
    conn: Any, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still at the first row, because the test holds a lock that its insert needs."""
    staging, rows, waits, sent = Staging(1, 1, 1), LongRows(), asyncio.Event(), tables.until_sent
    other = await connect()

    def watched(connection: Any) -> Generator[Any, Any, None]:
        for wanted in sent(connection):
            waits.set()
            yield wanted

    monkeypatch.setattr(tables, "until_sent", watched)
    async with asyncio.timeout(60), conn.transaction(force_rollback=True):
        await conn.execute(tables.create_statement(staging, 2))
        await conn.execute(STOP.format(rows=staging.rows))
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(7)")
            copying = asyncio.create_task(tables.copy_rows(conn, staging, rows))
            waiting = asyncio.create_task(waits.wait())
            while not waiting.done() and rows.count < COUNT:
                await asyncio.wait({copying, waiting}, timeout=0.01)
            read_ahead = rows.count
        await copying

    assert read_ahead < COUNT, "the rest of the file was in the memory of this process"
    assert rows.count == COUNT


def test_the_peak_of_memory_is_that_of_this_process_and_not_of_the_one_that_started_it() -> None:
    """The kernel hands `ru_maxrss` down to a child process."""
    large = bytearray(200 * MIB)
    code = "from holdfast.services.ingestion.jobs.memory import peak_memory; print(peak_memory())"

    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(child.stdout) < len(large) < peak_memory()
