"""Which schedules enqueue, and when the next one is due. Used by: `enqueue_due.py`, and heartbeats through `promote.py`.

A drained kind accepts no jobs: its due times wait until the drain ends, and `catch_up` then decides about them.
"""

ACTIVE = """p.disabled_at IS NULL AND p.paused_at IS NULL
      AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (p.kind, '*') AND c.drained_at IS NOT NULL)"""
NEXT_PERIODIC = f"SELECT min(p.next_due_at) - clock_timestamp() FROM holdfast.periodic_jobs p WHERE {ACTIVE}"
