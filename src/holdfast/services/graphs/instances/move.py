"""Move instances between states: begin a start, run, suspend, resume, restart, fail. Called by: the API, jobs, loops.

Every write names the state and the start token that it comes from; no row changed means that the instance has moved on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from holdfast.errors import IllegalMove
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId, Json
from holdfast.services.graphs.instances import admission, events
from holdfast.services.graphs.instances.jobs import enqueue_removal, start_job
from holdfast.services.graphs.instances.rows import Instance, hold, set_secret
from holdfast.services.graphs.runtimes.interface import ErrorCode, Observed
from holdfast.services.graphs.states import ACTIVE, InstanceState, is_legal

Conn = psycopg.AsyncConnection[Any]
S = InstanceState
LONGEST_ERROR: Final = 4000

# ---------------------------------------------------------------------------------------------------------------------
# Within a start
# ---------------------------------------------------------------------------------------------------------------------

BEGIN = """
    UPDATE holdfast.graph_instances SET state = 'starting', memory_mb = %(memory_mb)s
    WHERE id = %(id)s AND start_token = %(start_token)s AND state = 'waiting_for_snapshot'
"""


async def begin(conn: Conn, instance: Instance, *, memory_mb: int) -> bool:
    """Its snapshot is ready: waiting_for_snapshot → starting, with this much memory. False: it has moved on."""
    parameters = {"id": instance.id, "start_token": instance.start_token, "memory_mb": memory_mb}
    return (await conn.execute(BEGIN, parameters)).rowcount == 1


NOTE_SERVER = """
    UPDATE holdfast.graph_instances
    SET address = %(address)s, runtime_name = %(name)s, progress = coalesce(%(progress)s, progress)
    WHERE id = %(id)s AND start_token = %(start_token)s AND state IN ('starting', 'resuming')
      AND (address, runtime_name, progress) IS DISTINCT FROM (%(address)s, %(name)s, coalesce(%(progress)s, progress))
"""


async def note_server(conn: Conn, seen: Observed, progress: Json = None) -> None:
    """What is known of the graph server of a start."""
    parameters = {
        "id": seen.instance_id,
        "start_token": seen.start_token,
        "address": seen.address,
        "name": seen.name,
        "progress": None if progress is None else Jsonb(progress),
    }
    await conn.execute(NOTE_SERVER, parameters)


RUN = """
    UPDATE holdfast.graph_instances SET state = 'running', address = %(address)s, runtime_name = %(name)s,
        started_at = clock_timestamp(), last_activity_at = clock_timestamp(), progress = coalesce(%(progress)s, progress)
    WHERE id = %(id)s AND start_token = %(start_token)s AND state IN ('starting', 'resuming')
"""


async def run(conn: Conn, seen: Observed, progress: Json) -> bool:
    """The graph server has loaded: → running. False: the instance has moved on."""
    parameters = {
        "id": seen.instance_id,
        "start_token": seen.start_token,
        "address": seen.address,
        "name": seen.name,
        "progress": None if progress is None else Jsonb(progress),
    }
    if not (await conn.execute(RUN, parameters)).rowcount:
        return False
    await events.add(conn, seen.instance_id, "started", {"name": seen.name})
    return True


FAIL = """
    UPDATE holdfast.graph_instances SET state = 'failed', error_code = %(code)s, error = %(error)s, log_tail = %(log_tail)s
    WHERE id = %(id)s AND start_token = %(start_token)s AND state = %(state)s
"""


async def fail(conn: Conn, instance: Instance, code: ErrorCode, error: str, *, log_tail: str | None = None) -> bool:
    """→ failed, if it is still in the state and the start in which it was seen. False: it has moved on."""
    parameters = {
        "id": instance.id,
        "start_token": instance.start_token,
        "state": instance.status,
        "code": code,
        "error": error[:LONGEST_ERROR],
        "log_tail": log_tail,
    }
    if not (await conn.execute(FAIL, parameters)).rowcount:
        return False
    await events.add(conn, instance.id, "failed", {"error_code": code, "error": error[:LONGEST_ERROR]})
    return True


# ---------------------------------------------------------------------------------------------------------------------
# From one start to the next
# ---------------------------------------------------------------------------------------------------------------------

SUSPEND = """
    UPDATE holdfast.graph_instances
    SET state = 'suspended', suspended_at = clock_timestamp(), job_id = %(job_id)s, progress = NULL
    WHERE id = %(id)s AND start_token = %(start_token)s AND state = 'running'
"""


async def suspend(conn: Conn, instance_id: int) -> JobId:
    """running → suspended; the job that removes its graph server. Its snapshot stays, so it can be resumed."""
    async with conn.transaction():
        instance = await hold(conn, instance_id)
        refuse_illegal(instance, S.SUSPENDED, "suspended")
        job_id = await enqueue_removal(conn, instance_id, "suspend", start_token=instance.start_token)
        await conn.execute(SUSPEND, {"id": instance_id, "start_token": instance.start_token, "job_id": job_id})
        await events.add(conn, instance_id, "suspended", {"job_id": job_id})
    return job_id


START_AGAIN = """
    UPDATE holdfast.graph_instances
    SET state = %(state)s, job_id = %(job_id)s, start_token = %(new_token)s, starts = starts + 1,
        memory_mb = %(memory_mb)s, cpu = %(cpu)s, progress = NULL, address = NULL, runtime_name = NULL,
        resume_count = resume_count + %(resumed)s, last_activity_at = clock_timestamp()
    WHERE id = %(id)s AND start_token = %(start_token)s AND state = %(was)s
"""


async def resume(conn: Conn, instance_id: int, *, longest: timedelta) -> JobId:
    """suspended → resuming, or failed → starting; the job that starts it. `LimitExceeded` if there is no place for it."""
    async with conn.transaction():
        instance = await hold(conn, instance_id)
        state = S.RESUMING if instance.status is S.SUSPENDED else S.STARTING
        if instance.status is S.RUNNING:
            raise IllegalMove(f"graph instance {instance_id} is running already")
        refuse_illegal(instance, state, "resumed")
        job_id = await start_again(conn, instance, state, memory_mb=instance.memory_mb, cpu=instance.cpu, longest=longest)
        await events.add(conn, instance_id, "resumed", {"job_id": job_id, "was": instance.status})
    return job_id


async def start_again(
    conn: Conn,
    instance: Instance,
    state: InstanceState,
    *,
    memory_mb: int,
    cpu: float,
    longest: timedelta,
    after: Sequence[JobId] = (),
) -> JobId:
    """A new start of an instance whose row the caller has locked. Its token and secret are new: the old server is replaced."""
    if instance.status not in ACTIVE:
        await admission.admit(conn, instance.owner, count=1, memory_mb=memory_mb)
    elif memory_mb > instance.memory_mb:
        await admission.admit(conn, instance.owner, memory_mb=memory_mb - instance.memory_mb)
    new_token = str(uuid4())
    job = await enqueue(conn, start_job(instance.id, new_token, longest=longest, after=after))
    parameters = {
        "id": instance.id,
        "start_token": instance.start_token,
        "was": instance.status,
        "state": state,
        "job_id": job.id,
        "new_token": new_token,
        "memory_mb": memory_mb,
        "cpu": cpu,
        "resumed": 1 if state is S.RESUMING else 0,
    }
    await conn.execute(START_AGAIN, parameters)
    await set_secret(conn, instance.id)
    return job.id


def refuse_illegal(instance: Instance, to: InstanceState, verb: str) -> None:
    """`IllegalMove` if the instance may not move there now."""
    if not is_legal(instance.status, to):
        legal = sorted(state for state in S if is_legal(state, to))
        raise IllegalMove(
            f"graph instance {instance.id} is {instance.status}; it can be {verb} only while it is {' or '.join(legal)}"
        )
