"""Reads of the database in the middle of a schedule, written to the witness's log. Called by: `schedules/play.py`, workers.

Each read is one statement, so it sees one snapshot. The checker decides whether it is correct.
"""

from __future__ import annotations

from typing import Any

from proof.schedules.world import World

from holdfast.jobs.model import Claim

LOOK = """
    SELECT jsonb_build_object(
        'holders', (SELECT coalesce(jsonb_agg(jsonb_build_object('key', h.key, 'most', h.most, 'job', h.job_id,
                        'holder', h.attempt_id, 'state', j.state, 'attempt', j.attempt_id, 'when_busy', w.when_busy)), '[]')
                    FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
                    LEFT JOIN holdfast.lock_wants w ON w.job_id = h.job_id AND w.key = h.key),
        'bare', (SELECT coalesce(jsonb_agg(jsonb_build_array(w.job_id, w.key)), '[]')
                 FROM holdfast.jobs j JOIN holdfast.lock_wants w ON w.job_id = j.id
                 WHERE j.id > %(base)s AND j.state IN ('running', 'submitted')
                   AND NOT EXISTS (SELECT FROM holdfast.lock_holders h WHERE h.job_id = j.id AND h.key = w.key)),
        'crowded', (SELECT coalesce(jsonb_agg(jsonb_build_array(slot_key, ids)), '[]')
                    FROM (SELECT slot_key, array_agg(id ORDER BY id) AS ids FROM holdfast.jobs
                          WHERE id > %(base)s AND slot_key IS NOT NULL AND state IN ('running', 'submitted')
                          GROUP BY slot_key HAVING count(*) > 1) AS s),
        'not_current', (SELECT coalesce(jsonb_agg(jsonb_build_array(slot_key, id)), '[]') FROM holdfast.jobs
                        WHERE id > %(base)s AND slot_key IS NOT NULL AND NOT is_current AND state IN ('running', 'submitted')),
        'twins', (SELECT coalesce(jsonb_agg(jsonb_build_array(unique_key, ids)), '[]')
                  FROM (SELECT unique_key, array_agg(id ORDER BY id) AS ids FROM holdfast.jobs
                        WHERE id > %(base)s AND unique_key IS NOT NULL AND attempt_no = 0 AND state IN ('blocked', 'pending')
                        GROUP BY kind, unique_key HAVING count(*) > 1
                        UNION ALL
                        SELECT unique_key, array_agg(id ORDER BY id) FROM holdfast.jobs
                        WHERE id > %(base)s AND unique_while = 'live'
                          AND state IN ('blocked', 'pending', 'running', 'submitted')
                        GROUP BY kind, unique_key HAVING count(*) > 1) AS t))
"""


CLAIMABLE = """
    SELECT id, kind, ties & 3 <> 0 FROM holdfast.jobs j
    WHERE id > %(base)s AND state = 'pending' AND run_after IS NULL
      AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL)
    ORDER BY priority, id
"""


async def claimable(world: World) -> list[tuple[int, str, bool]]:
    """What a claim could take now, in its order: id, kind, and whether it needs a lock or a slot."""
    return await (await world.stage.watcher.execute(CLAIMABLE, {"base": world.base}, prepare=True)).fetchall()


async def look_around(world: World) -> None:
    """Who holds which lock, who is current, who waits twice."""
    begun = world.witness.tick()
    row = await (await world.stage.watcher.execute(LOOK, {"base": world.base})).fetchone()
    assert row is not None
    world.witness.note("look", begun, **row[0])


# Somebody who waits only for locks that nobody holds must have somebody before it on the way to them; a slot likewise.
FORGOTTEN = """
    SELECT 'lock ' || w.key, w.job_id FROM holdfast.lock_wants mine
    JOIN holdfast.lock_wants w ON w.key = mine.key AND w.waiting JOIN holdfast.jobs j ON j.id = w.job_id
    WHERE mine.job_id = %(job)s AND j.state = 'blocked' AND j.waiting_for = 'lock'
      AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL)
      AND NOT EXISTS (
          SELECT FROM holdfast.lock_wants also WHERE also.job_id = w.job_id AND also.waiting
          AND (EXISTS (SELECT FROM holdfast.lock_holders h WHERE h.key = also.key)
               OR EXISTS (SELECT FROM holdfast.lock_wants o JOIN holdfast.jobs k ON k.id = o.job_id
                          WHERE o.key = also.key AND k.state = 'pending' AND k.run_after IS NULL)))
    UNION ALL
    SELECT 'slot ' || f.slot_key, f.id FROM holdfast.jobs j JOIN holdfast.jobs f ON f.slot_key = j.slot_key
    WHERE j.id = %(job)s AND f.id <> j.id AND f.state = 'blocked' AND f.waiting_for = 'slot'
      AND NOT EXISTS (SELECT FROM holdfast.jobs c WHERE c.slot_key = j.slot_key AND c.is_current
                      AND c.state NOT IN ('completed', 'failed', 'cancelled'))
"""


async def look_after_end(world: World, one: Claim) -> None:
    """Whether the end of an attempt woke those who waited for what it held. Only when nothing else is under way."""
    begun = world.witness.tick()
    rows: list[tuple[Any, ...]] = await (await world.stage.watcher.execute(FORGOTTEN, {"job": one.id})).fetchall()
    world.witness.note("look after end", begun, job=one.id, attempt=one.attempt_id, forgotten=rows)
