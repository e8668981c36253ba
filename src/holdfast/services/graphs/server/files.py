"""Bring the Parquet files of a table to this machine, and check them against the plan before anything is loaded.

Files of object stores are downloaded; local files are linked. Either way the engine sees plain names in one folder: a path
may have characters that the engine would read as a pattern.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.extras import lazily
from holdfast.services.graphs.plan import EdgeTable, File, NodeTable
from holdfast.services.graphs.server.columns import needs_rewrite, rewritten
from holdfast.services.graphs.server.schema import columns_of
from holdfast.stores.opening import StoreOptions, opened_store
from holdfast.stores.paths import Location, location_of
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = lazily("pyarrow")
    pq = lazily("pyarrow.parquet")

DOWNLOADS_AT_ONCE: Final = 4


class FileWrong(Exception):
    """A file is missing, unreadable, or not what the plan says."""


@dataclass(frozen=True, slots=True)
class Brought:
    """The files of a table on this machine, and their Arrow schema; None without files."""

    files: tuple[Path, ...]
    schema: pa.Schema | None


async def bring(table: NodeTable | EdgeTable, folder: Path, options: StoreOptions) -> Brought:
    """The files of a table below `folder`; `FileWrong` if one is not what the plan says."""
    await in_thread(lambda: folder.mkdir(parents=True, exist_ok=True))
    limit = asyncio.Semaphore(DOWNLOADS_AT_ONCE)

    async def one(number: int, file: File) -> Path:
        here = folder / f"{number:05}.parquet"
        async with limit:
            await _bring_file(file, here, options)
        return here

    here = await asyncio.gather(*(one(number, file) for number, file in enumerate(table.files)))
    return Brought(*await in_thread(_checked, table, here))


def discard(folder: Path) -> None:
    """Remove what was brought. Originals of linked files stay."""
    shutil.rmtree(folder, ignore_errors=True)


async def _bring_file(file: File, here: Path, options: StoreOptions) -> None:
    location = location_of(file.path)
    if location.scheme == "file":
        await in_thread(_link, file, Path(location.prefix), here)
        return
    prefix, _, name = location.prefix.rpartition("/")
    async with opened_store(Location(location.scheme, location.bucket, prefix), options) as store:
        size = await store.get_file(name, here)
    if size != file.bytes:
        raise FileWrong(f"{file.path} has {size:,} bytes, but the plan says {file.bytes:,}")


def _link(file: File, original: Path, here: Path) -> None:
    if not original.is_file():
        raise FileWrong(f"{file.path} does not exist")
    here.unlink(missing_ok=True)
    here.symlink_to(original)


def _checked(table: NodeTable | EdgeTable, here: Sequence[Path]) -> tuple[tuple[Path, ...], pa.Schema | None]:
    """Compare names, order and row counts with the plan; rewrite a file whose types the engine cannot read."""
    wanted, schema, found = columns_of(table), None, []
    for file, path in zip(table.files, here, strict=True):
        try:
            parquet = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise FileWrong(f"{file.path} is not a Parquet file: {str(error).splitlines()[0]}") from None
        with parquet:
            names, rows = parquet.schema_arrow.names, parquet.metadata.num_rows
            if names != wanted:
                raise FileWrong(f"{file.path} has the columns {', '.join(names)}; {table.name} needs {', '.join(wanted)}")
            if rows != file.rows:
                raise FileWrong(f"{file.path} has {rows:,} rows, but the plan says {file.rows:,}")
            is_readable = not any(needs_rewrite(field.type) for field in parquet.schema_arrow)
            found.append(path if is_readable else _rewrite(parquet, path))
            schema = schema or parquet.schema_arrow
    if sum(file.rows for file in table.files) != table.rows:
        raise FileWrong(
            f"the files of {table.name} have {sum(f.rows for f in table.files):,} rows, but the plan says {table.rows:,}"
        )
    return tuple(found), schema


def _rewrite(parquet: pq.ParquetFile, path: Path) -> Path:
    """The same rows with timestamps in microseconds, row group by row group."""
    source = parquet.schema_arrow
    target = pa.schema([f.with_type(rewritten(f.type)) if needs_rewrite(f.type) else f for f in source])
    to = path.with_suffix(".us.parquet")
    with pq.ParquetWriter(to, target) as writer:
        for number in range(parquet.metadata.num_row_groups):
            writer.write_table(parquet.read_row_group(number).cast(target, safe=False))
    return to
