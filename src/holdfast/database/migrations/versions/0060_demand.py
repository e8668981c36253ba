"""The view `demand`: how much work there is for workers, by queue and kind. Autoscalers read it as a role that sees no job.

It counts everything for which a worker must be there: jobs that can be claimed (`waiting`, `due`), engines to ask (`to_poll`),
jobs of workers whose lease has expired (`stale`) and jobs of live workers (`held`). A Deployment is scaled by `value`, with
`held`: without it the demand is 0 while the last job runs, and the autoscaler stops the worker that runs it. A pod per job is
started by `backlog`, without `held`, because the autoscaler adds the running pods itself.

`waiting` is counted up to 10,000 per queue and kind, with a skip scan of the claim index; the others are few. Kinds that an
operator has paused are not demand, because no worker would claim them.
"""

from alembic import op

revision = "0060"
down_revision = "0050"
branch_labels = None
depends_on = None
oldest_code = revision  # earlier code does not read `oldest_code`, and refuses a schema that is newer than itself

UPGRADE = """
CREATE VIEW holdfast.demand AS
WITH RECURSIVE hop AS (
    (SELECT queue, kind FROM holdfast.jobs WHERE state = 'pending' AND run_after IS NULL ORDER BY queue, kind LIMIT 1)
    UNION ALL
    SELECT next.queue, next.kind FROM hop CROSS JOIN LATERAL (
        SELECT queue, kind FROM holdfast.jobs j
        WHERE state = 'pending' AND run_after IS NULL AND (j.queue, j.kind) > (hop.queue, hop.kind)
        ORDER BY queue, kind LIMIT 1) AS next
),
work (queue, kind, waiting, due, to_poll, stale, held) AS (
    SELECT hop.queue, hop.kind, few.waiting, 0, 0, 0, 0
    FROM hop CROSS JOIN LATERAL (
        SELECT count(*) AS waiting FROM (
            SELECT FROM holdfast.jobs j WHERE j.state = 'pending' AND j.run_after IS NULL
                AND j.queue = hop.queue AND j.kind = hop.kind LIMIT 10000) AS first) AS few
    UNION ALL
    SELECT queue, kind, 0, count(*), 0, 0, 0 FROM holdfast.jobs
    WHERE state = 'pending' AND run_after <= (SELECT clock_timestamp()) GROUP BY 1, 2
    UNION ALL
    SELECT queue, kind, 0, 0, count(*), 0, 0 FROM holdfast.jobs
    WHERE state = 'submitted' AND next_poll_at <= (SELECT clock_timestamp()) GROUP BY 1, 2
    UNION ALL
    SELECT j.queue, j.kind, 0, 0, 0, count(*) FILTER (WHERE w.lease_until >= clock_timestamp() IS NOT TRUE),
           count(*) FILTER (WHERE w.lease_until >= clock_timestamp())
    FROM holdfast.jobs j LEFT JOIN holdfast.workers w ON w.id = j.worker_id WHERE j.worker_id IS NOT NULL GROUP BY 1, 2
)
SELECT queue, kind,
       sum(waiting)::bigint AS waiting, sum(due)::bigint AS due, sum(to_poll)::bigint AS to_poll,
       sum(stale)::bigint AS stale, sum(held)::bigint AS held,
       sum(waiting + due + to_poll + stale)::bigint AS backlog,
       sum(waiting + due + to_poll + stale + held)::bigint AS value
FROM (SELECT queue, kind, CASE WHEN paused THEN 0 ELSE waiting END AS waiting, CASE WHEN paused THEN 0 ELSE due END AS due,
             to_poll, stale, held
      FROM work CROSS JOIN LATERAL (SELECT EXISTS (
          SELECT FROM holdfast.controls c WHERE c.kind IN (work.kind, '*') AND c.paused_at IS NOT NULL) AS paused) AS said
     ) AS counted
GROUP BY queue, kind;
COMMENT ON VIEW holdfast.demand IS 'How much work there is for workers, by queue and kind: for autoscalers.';
"""

DOWNGRADE = """
DROP VIEW holdfast.demand;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
