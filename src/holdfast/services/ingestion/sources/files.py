"""The rows of uploaded files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from holdfast.errors import NotFound

Conn = psycopg.AsyncConnection[Any]
COLUMNS = "id, path, name, bytes, sha256, uploaded_by, created_at"


@dataclass(frozen=True, slots=True)
class File:
    """A file in the store."""

    id: int
    path: str
    name: str
    bytes: int
    sha256: str
    uploaded_by: str
    created_at: datetime


ADD = f"""
    INSERT INTO holdfast.ingestion_files (path, name, bytes, sha256, uploaded_by)
    VALUES (%(path)s, %(name)s, %(bytes)s, %(sha256)s, %(by)s)
    ON CONFLICT (path) DO UPDATE SET bytes = excluded.bytes, sha256 = excluded.sha256 RETURNING {COLUMNS}
"""


async def add(conn: Conn, path: str, *, name: str, size: int, sha256: str, by: str) -> File:
    """Record a file that is in the store."""
    async with conn.cursor(row_factory=class_row(File)) as cursor:
        await cursor.execute(ADD, {"path": path, "name": name, "bytes": size, "sha256": sha256, "by": by})
        made = await cursor.fetchone()
    assert made is not None
    return made


READ = f"SELECT {COLUMNS} FROM holdfast.ingestion_files WHERE id = %(id)s"


async def get(conn: Conn, file_id: int) -> File:
    """One file."""
    async with conn.cursor(row_factory=class_row(File)) as cursor:
        await cursor.execute(READ, {"id": file_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no uploaded file {file_id}; upload it with POST /api/ingestion/files")
    return found


OF_JOB = f"""
    SELECT {", ".join(f"f.{one}" for one in COLUMNS.split(", "))} FROM holdfast.ingestion_files f
    JOIN holdfast.ingestions i ON i.file_id = f.id WHERE i.job_id = %(job_id)s
"""


async def of_job(conn: Conn, job_id: int) -> File:
    """The file of an earlier job."""
    async with conn.cursor(row_factory=class_row(File)) as cursor:
        await cursor.execute(OF_JOB, {"job_id": job_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"job {job_id} has no file; give the id of a job that ingested one")
    return found
