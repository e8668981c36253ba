"""Store the status of a pipeline on its row, for lists. Called by: the loop `pipeline_status`.

The status follows from the states of a pipeline's jobs, and `read_pipeline` computes it. That is too slow for a list, such as
the failed ones among 100,000 pipelines, so the loop stores the status on each pipeline's row.
"""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.jobs.views.pipeline_status import StoredStatus

SET_STATUS = """
    UPDATE holdfast.pipelines SET status = %(status)s, finished_at = %(finished_at)s, checked_at = clock_timestamp()
    WHERE id = %(id)s AND status = %(was)s
"""


async def store_status(conn: psycopg.AsyncConnection[Any], pipeline: StoredStatus) -> None:
    """Store the current status of this pipeline, unless another process has stored one meanwhile."""
    status = pipeline.was if pipeline.status is None else pipeline.status.value
    parameters = {"id": pipeline.id, "was": pipeline.was, "status": status, "finished_at": pipeline.finished_at}
    await conn.execute(SET_STATUS, parameters)
